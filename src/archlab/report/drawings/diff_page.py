"""Page that compares two configs, in one HTML file that opens offline. It shows the choices that differ, the block
diagrams side by side, and the fields that differ."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from archlab.atlas.inspect import choices
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.schema import Config
from archlab.files import write_page
from archlab.report.drawings.block import side_by_side
from archlab.report.drawings.turns import in_turns
from archlab.report.html import render_page

Named = tuple[str, Config]

_FIRST = 5
"""Number of choices that the page shows before the diagrams."""
_ORDER = ("size", "encoder", "attention", "recurrent mixer", "MLP", "norm", "position", "sees", "block")
"""Most important choices, in the order of the page. The others follow."""
_MISSING = "-"


class Cell(NamedTuple):
    """Value of a field as the page shows it, and its exact value."""

    text: str
    exact: str


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
    rows = [(name, first.get(name, _MISSING), second.get(name, _MISSING)) for name in names]
    return [row for row in rows if row[1] != row[2]]


def rounded(*values: Any) -> list[Cell]:
    """Return the values of a field as text. Numbers have four significant digits, and equal layers in a row are
    counted, unless the texts would then be the same."""
    exact = [_MISSING if value is None else to_yaml_line(value) for value in values]
    short = list(map(_short, values, exact))
    texts = short if len(set(short)) == len(set(exact)) else exact
    return [Cell(*pair) for pair in zip(texts, exact, strict=True)]


def _short(value: Any, exact: str) -> str:
    match value:
        case {}:
            return _UNCHANGED
        case [str(), str(), str(), str(), str(), *_]:
            return in_turns(value)
        case _:
            return _DECIMALS.sub(lambda number: f"{float(number[0]):.4g}", exact)


_UNCHANGED = "no changes"
"""Text of a kind of layer without changes."""

_DECIMALS = re.compile(r"(?<![\w.])\d{1,3}\.\d{4,}(?:e[+-]?\d+)?(?![\w.])")
"""Number below 1,000 with at least four decimal places."""
