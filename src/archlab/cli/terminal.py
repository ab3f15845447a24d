"""Plain tables on the terminal: as wide as it is, readable in 80 columns, in a pipe and without colours."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from archlab.console import console
from archlab.report.text_table import fitted

_UNBOUNDED = 10_000
"""Columns that no table reaches."""

_FEW = 4
"""Columns that stay together however narrow the terminal is."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Rows under their headings; the columns named in `right` are numbers. Where the terminal is not wide enough, some
    columns first and then the others, each time beside the first one."""
    out, rows = console(), [*rows]
    heading, *cells = fitted([columns, *([str(cell) for cell in row] for row in rows)], out.width - 2 * len(columns))
    if len(columns) > _FEW and any("\n" in row[0] for row in cells):
        half = len(columns) // 2 + 1
        for part in (slice(1, half), slice(half, None)):
            print_table((columns[0], *columns[part]), [(row[0], *row[part]) for row in rows], right=right)
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name, title in zip(columns, heading, strict=True):
        table.add_column(title, justify="right" if name in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    show_table(out, table)


def show_table(out: Console, table: Table) -> None:
    """Print a table whose lines are broken already; where it is still too wide, the terminal breaks its lines."""
    out.width = max(out.width, out.measure(table, options=out.options.update(max_width=_UNBOUNDED)).maximum)
    out.print(table)


def print_json(value: Any) -> None:
    """For scripts: indented JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
