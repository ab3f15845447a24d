"""`archlab guide`."""

from pathlib import Path

from archlab.report.drawings.pictures import pictures
from archlab.report.guide import write_guide


def run(*, out: Path) -> None:
    """Write the guide as a static site: every topic of `archlab explain`, a page per chapter, and a bibliography.

    Parameters
    ----------
    out
        The folder to write it into; its index.html is the first page.
    """
    print(write_guide(out, pictures()))
