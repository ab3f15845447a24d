"""Values as text, as Python's prompt shows them: the output of the command about the same value."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import singledispatch
from io import StringIO
from typing import Any

from rich.console import Console

from archlab.atlas.list_presets import Presets
from archlab.config.core.yaml_text import to_yaml
from archlab.config.model_schema import ModelConfig
from archlab.config.parallel import ParallelConfig
from archlab.config.schema import Config, DataConfig, TrainConfig
from archlab.console import console
from archlab.displayed import Evaluations, Families, Printed, Transformations, Written
from archlab.evidence.ledger import Ledger, LedgerEntry
from archlab.evidence.studies import Studies
from archlab.evidence.study_plan import PlannedStudy
from archlab.exchange.diff import Differences
from archlab.pricing.hardware import Devices, Hardware
from archlab.pricing.summary import Cost
from archlab.report.check import Review, print_review
from archlab.report.cost.answer import Costs, Plans
from archlab.report.cost.tables import of_one
from archlab.report.device import print_device
from archlab.report.drawings.figure import Figure
from archlab.report.evaluations import print_evaluations
from archlab.report.explain import Explanation
from archlab.report.ledger.text import print_entry, print_ledger
from archlab.report.lists import print_differences, print_families, print_hardware, print_presets, print_transformations
from archlab.report.run.watched import Watched
from archlab.report.study.claims import print_studies
from archlab.report.study.plan import print_plan
from archlab.report.text_table import FIXED, Table, print_columns
from archlab.sizing.proposal_yaml import as_yaml
from archlab.sizing.propose import Proposal
from archlab.study.record import StudySummary
from archlab.training.summary import RunSummary

_WIDTH = 100
"""Number of columns of the text, which fit beside the number of a notebook's cell."""


def text_of(value: object) -> str:
    """Return the text of a value, without empty lines at its start and end."""
    text = StringIO()
    print_value(value, console(file=text, width=_WIDTH))
    return "\n".join(line.rstrip() for line in text.getvalue().split("\n")).strip("\n")


@singledispatch
def print_value(value: object, out: Console) -> None:
    """Print a value. Each class of values has its own function."""
    raise TypeError(f"no text for {type(value).__name__}")


@print_value.register
def _(value: Config | ModelConfig, out: Console) -> None:
    out.print(to_yaml(value.model_dump(mode="json", exclude_unset=True)), soft_wrap=True)


@print_value.register
def _(value: TrainConfig | DataConfig | ParallelConfig, out: Console) -> None:
    out.print(to_yaml(value.model_dump(mode="json")), soft_wrap=True)


@print_value.register
def _(value: Cost, out: Console) -> None:
    _print_tables(of_one(value), out)


@print_value.register
def _(value: Costs | Plans, out: Console) -> None:
    _print_tables(value.tables(), out)


@print_value.register
def _(value: Review, out: Console) -> None:
    print_review(out, value)


@print_value.register
def _(value: Explanation, out: Console) -> None:
    for line in value.lines(out.width):
        out.print(line, soft_wrap=True)


@print_value.register
def _(value: Figure, out: Console) -> None:
    out.print(f"{value.title}: a picture; a notebook shows it, and save(path) writes it", soft_wrap=True)


@print_value.register
def _(value: Written, out: Console) -> None:
    out.print(value.text(), soft_wrap=True)


@print_value.register
def _(value: Printed, out: Console) -> None:
    value.print_to(out)


@print_value.register
def _(value: PlannedStudy, out: Console) -> None:
    print_plan(out, value)


@print_value.register
def _(value: Proposal, out: Console) -> None:
    out.print(as_yaml(value), soft_wrap=True)


@print_value.register
def _(value: Differences, out: Console) -> None:
    print_differences(out, value, *value.names)


@print_value.register
def _(value: StudySummary, out: Console) -> None:
    from archlab.report.study.tables import print_study  # loads Altair

    print_study(out, value)


@print_value.register
def _(value: Watched, out: Console) -> None:
    from archlab.report.run.page import COLUMNS, run_rows  # loads Altair

    print_columns(out, COLUMNS, run_rows([value]), right=COLUMNS[2:])


@print_value.register
def _(value: RunSummary, out: Console) -> None:
    out.print(f"{value.status}: {value.why or value.result}", soft_wrap=True)
    out.print(to_yaml(value.model_dump(mode="json", exclude_none=True, exclude={"status", "why"})), soft_wrap=True)


_PRINTED: Mapping[type, Callable[[Console, Any], None]] = {
    Presets: print_presets,
    Devices: print_hardware,
    Hardware: print_device,
    Families: print_families,
    Transformations: print_transformations,
    Studies: print_studies,
    Ledger: print_ledger,
    LedgerEntry: print_entry,
    Evaluations: print_evaluations,
}
for _kind, _print in _PRINTED.items():
    print_value.register(_kind, lambda value, out, print_it=_print: print_it(out, value))


def _print_tables(tables: Iterable[Table], out: Console) -> None:
    for table in tables:
        print_columns(out, table.columns, table.rows, right=table.columns[1:])


_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$", "−": "--", FIXED: " ",
}  # fmt: skip
"""LaTeX for characters that have a meaning in LaTeX, or that some engines do not print."""


def latex_of(study: StudySummary) -> str:
    """Return the table of the arms as LaTeX for booktabs."""
    from archlab.report.study.tables import arm_table

    columns, rows = arm_table(study)
    alignment = "".join("l" if heading in ("arm", "verdict") else "r" for heading in columns)
    lines = [" & ".join(_latex(cell) for cell in cells) + r" \\" for cells in (columns, *rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
         r"\end{tabular}", ""]
    )  # fmt: skip


_NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")


def _latex(text: str) -> str:
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return _NEGATIVE.sub("$-$", escaped)  # a hyphen would be shorter than a minus sign
