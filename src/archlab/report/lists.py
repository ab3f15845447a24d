"""Lists as text: presets, hardware, families of checkpoints, transformations of weights, and differing fields."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from archlab.atlas.list_presets import Presets
from archlab.atlas.select import fields_of
from archlab.atlas.table import MARKS, evolution, without_architecture
from archlab.config.core.yaml_text import to_yaml_line
from archlab.pricing.hardware import Hardware
from archlab.pricing.units import binary, si
from archlab.report.drawings.turns import in_turns
from archlab.report.text_table import Table, print_columns

MISSING = "-"
"""Text of a field that a config lacks."""

_UNCHANGED = "no changes"
"""Text of a kind of layer without changes."""

_DECIMALS = re.compile(r"(?<![\w.])\d{1,3}\.\d{4,}(?:e[+-]?\d+)?(?![\w.])")
"""Number below 1,000 with at least four decimal places."""

_HARDWARE = ("hardware", "year", "memory", "bytes/s", "float32", "bfloat16", "int8", "link")
_HARDWARE_LEGEND = (
    "float32, bfloat16, int8: operations per second of dense matrix products.",
    "link: bytes per second that one device sends to the others in its server.",
    "* from secondary sources; ~ from memory. `archlab hardware NAME` shows more.",
    "`archlab hardware --measure` measures this machine and lists it as `this`.",
)


def print_presets(out: Console, presets: Presets) -> None:
    """Print the table of the atlas. The console must not wrap its lines, because they are already wrapped."""
    if presets.published:
        fields = fields_of(presets.conditions, presets.sort)
        for text, style in evolution(presets.published, out.width, fields, by_year=presets.sort is None):
            out.print(Text(text, style=style), soft_wrap=True)
    if presets.unpublished:
        out.print(Text(without_architecture(presets.unpublished), style="dim"))
    if presets.own:
        print_columns(out, ("preset", "what it is"), presets.own.items())


def print_hardware(out: Console, devices: Mapping[str, Hardware]) -> None:
    rows = [_hardware_cells(name, device) for name, device in devices.items()]
    print_columns(out, _HARDWARE, rows, right=_HARDWARE[1:])
    for line in _HARDWARE_LEGEND:
        out.print(line)


def _hardware_cells(name: str, device: Hardware) -> tuple[str, ...]:
    peaks = (si(device.peak[key]) if key in device.peak else "-" for key in ("float32", "bfloat16", "int8"))
    link = si(device.link.bandwidth) if device.link else "-"
    return (
        f"{name}{MARKS[device.certainty]}",
        str(device.year),
        binary(device.memory),
        si(device.bandwidth),
        *peaks,
        link,
    )


def print_families(out: Console, classes: Mapping[str, str]) -> None:
    print_columns(out, ("family", "transformers class"), classes.items())


def print_transformations(out: Console, transformations: Mapping[str, Mapping[str, str]]) -> None:
    rows = [(name, about["effect"], about["fields"], _sentences(about)) for name, about in transformations.items()]
    print_columns(out, ("transformation", "effect", "fields", "what it does"), rows)


def _sentences(about: Mapping[str, str]) -> str:
    """Return the rule of a transformation, the texts in which it is exact, and its source as sentences."""
    limit = f"Exact in {about['exact_in']}" if about["exact_in"] else ""
    parts = (about["rule"].removesuffix("."), limit, about["paper"])
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)


def print_differences(out: Console, differences: Mapping[str, tuple[object, object]], a: str, b: str) -> None:
    """Print the fields in which the configs named `a` and `b` differ."""
    if not differences:
        out.print("no difference")
        return
    table = difference_table(differences, a, b)
    print_columns(out, table.columns, table.rows)


def difference_table(differences: Mapping[str, tuple[object, object]], a: str, b: str) -> Table:
    """Return the table of the fields in which the configs named `a` and `b` differ."""
    rows = [(field, *(cell.text for cell in rounded(*pair))) for field, pair in differences.items()]
    return Table(("field", a, b), rows)


class Cell(NamedTuple):
    """Value of a field as a reader sees it, and its exact value."""

    text: str
    exact: str


def rounded(*values: Any) -> list[Cell]:
    """Return the values of a field as text. Numbers have four significant digits, and equal layers in a row are
    counted, unless the texts would then be the same."""
    exact = [MISSING if value is None else to_yaml_line(value) for value in values]
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
