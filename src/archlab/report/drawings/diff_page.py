"""Page that compares two configs, in one HTML file that opens offline. It shows their block diagrams side by side, and
the fields that differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.schema import Config
from archlab.files import write_page
from archlab.report.drawings.block import side_by_side
from archlab.report.html import render_page

Named = tuple[str, Config]


def write_diff(a: Named, b: Named, differences: Mapping[str, tuple[Any, Any]], path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render(a, b, differences))


def render(a: Named, b: Named, differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the page as HTML. `differences` maps a field to its two values; None means that the config lacks the
    field. Diagrams of models with an encoder are too wide to stand side by side."""
    diagrams = side_by_side(a[1], a[0], b[1], b[0])
    rows = [
        (field, *("-" if value is None else to_yaml_line(value) for value in pair))
        for field, pair in differences.items()
    ]
    is_wide = any(config.model.encoder is not None for _, config in (a, b))
    return render_page(
        "diff", names=(a[0], b[0]), diagrams=[Markup(diagram) for diagram in diagrams], rows=rows, is_wide=is_wide
    )
