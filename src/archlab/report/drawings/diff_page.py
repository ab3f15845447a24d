"""Page that compares two configs, in one HTML file that opens offline. It shows the choices that differ, the block
diagrams side by side, and the fields that differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from archlab.atlas.inspect import choices
from archlab.config.schema import Config
from archlab.files import write_page
from archlab.report.drawings.block import side_by_side
from archlab.report.html import render_page
from archlab.report.lists import MISSING, rounded

Named = tuple[str, Config]

_FIRST = 5
"""Number of choices that the page shows before the diagrams."""
_ORDER = ("size", "encoder", "attention", "recurrent mixer", "MLP", "norm", "position", "sees", "block")
"""Most important choices, in the order of the page. The others follow."""


def write_diff(a: Named, b: Named, differences: Mapping[str, tuple[Any, Any]], path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render(a, b, differences))


def render(a: Named, b: Named, differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the page as HTML. `differences` maps a field to its two values; None means that the config lacks the
    field. Diagrams of models with an encoder are too wide to stand side by side."""
    changed = differing_choices(a[1], b[1])
    return render_page(
        "diff",
        names=(a[0], b[0]),
        changed=changed[:_FIRST],
        also=[name for name, *_ in changed[_FIRST:]],
        diagrams=[Markup(diagram) for diagram in side_by_side([a, b])],
        rows=[(field, *rounded(*pair)) for field, pair in differences.items()],
        is_wide=any(config.model.encoder is not None for _, config in (a, b)),
    )


def differing_choices(a: Config, b: Config) -> list[tuple[str, str, str]]:
    """Return (choice, text of `a`, text of `b`) for each design choice that differs, the most important first. A dash
    means that a model lacks the component."""
    first, second = choices(a.model), choices(b.model)
    names = dict.fromkeys((*_ORDER, *first, *second))
    rows = [(name, first.get(name, MISSING), second.get(name, MISSING)) for name in names]
    return [row for row in rows if row[1] != row[2]]
