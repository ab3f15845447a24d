"""What `archlab check` found, as one HTML file that opens offline."""

from collections.abc import Sequence
from pathlib import Path

from archlab.evidence.claims import cited
from archlab.files import write_page
from archlab.report import check as check_words
from archlab.report import html
from archlab.review.findings import Finding, summary


def write_check(config: str, found: Sequence[Finding], path: Path) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(config, found))


def render(config: str, found: Sequence[Finding]) -> str:
    """The page as text: styles inlined, nothing loaded from anywhere, and no script. `config`: as it was called."""
    return html.template("check.html.jinja").render(
        config=config, found=found, summary=summary(found), words=check_words, cited=cited
    )
