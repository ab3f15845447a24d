"""Values as HTML, as a notebook shows them: parts of the page about the same value.

Charts are pictures without scripts, so a saved notebook shows them everywhere, and stays small.
"""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any
from zlib import crc32

import altair as alt
from markupsafe import Markup

from archlab.atlas.inspect import choices
from archlab.config.core.yaml_text import to_yaml
from archlab.config.describe import layer_table
from archlab.config.identity import resolved, resolved_model
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.displayed import Evaluations
from archlab.evidence.prices import BASE, CONTEXT
from archlab.evidence.study_plan import PlannedStudy
from archlab.exchange.diff import Differences
from archlab.pricing.summary import Cost
from archlab.report import evaluations
from archlab.report.charts.still import still
from archlab.report.check import Review, template_values
from archlab.report.cost.answer import Costs, Plans
from archlab.report.cost.tables import of_one
from archlab.report.explain import Explanation
from archlab.report.guide.lecture import topic_entry
from archlab.report.html import render_part
from archlab.report.lists import difference_table
from archlab.report.notebook.figures import Charts, charts_of, forest_of
from archlab.report.notebook.text import text_of
from archlab.report.run.page import COLUMNS, answer, facts, run_rows, title
from archlab.report.run.watched import Watched, load_run
from archlab.report.study import plan
from archlab.report.study.arms import DIFFERENCES_SHOW
from archlab.report.study.tables import arm_table
from archlab.report.text_table import Table
from archlab.study.record import StudySummary
from archlab.training.summary import RunSummary

_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("title", "answer", "facts", "review", "entry", "lines", "config", "words"), ""),
    **dict.fromkeys(("pictures", "tables", "notes", "findings", "results"), ()),
}
"""Variables of the template that a value may leave out."""


def html_of(value: object) -> str:
    """Return the HTML of a value, without scripts."""
    return str(render_part(("archlab.report",), "notebook", **_EMPTY | parts_of(value)))


@singledispatch
def parts_of(value: object) -> dict[str, Any]:
    """Return the variables of the template `notebook` that a value sets. Each class of values has its own function."""
    return {"lines": text_of(value)}


@parts_of.register
def _(value: Config | ModelConfig) -> dict[str, Any]:
    model = value.model if isinstance(value, Config) else value
    rows = layer_table(model)
    layers = Table(list(rows[0]), [list(row.values()) for row in rows])
    return {
        "tables": [Table(("architecture", ""), [*choices(model).items()]), layers],
        "config": to_yaml(resolved(value) if isinstance(value, Config) else resolved_model(value)),
        "words": True,
    }


@parts_of.register
def _(value: Cost) -> dict[str, Any]:
    return {"tables": [*of_one(value)]}


@parts_of.register
def _(value: Costs | Plans) -> dict[str, Any]:
    return {"tables": [*value.tables()]}


@parts_of.register
def _(value: Review) -> dict[str, Any]:
    values = template_values(value)
    return {**values, "review": value, "title": value.part, "answer": values["summary"]}


@parts_of.register
def _(value: Explanation) -> dict[str, Any]:
    match value.match:
        case (str() as name, topic):
            return {"title": topic.title, "entry": topic_entry(name, topic), "base": BASE, "context": CONTEXT}
        case _:
            return {"lines": text_of(value)}


@parts_of.register
def _(value: StudySummary) -> dict[str, Any]:
    return {
        "title": value.question,
        "answer": value.answer,
        "pictures": _pictures(forest_of(value), {"differences": DIFFERENCES_SHOW}),
        "tables": [Table(*arm_table(value))],
        "notes": value.warnings,
    }


@parts_of.register
def _(value: PlannedStudy) -> dict[str, Any]:
    return {
        "title": value.config.question,
        "tables": [*plan.tables(value)],
        "notes": [*plan.about(value), *plan.needs(value), *value.notes],
    }


@parts_of.register
def _(value: Evaluations) -> dict[str, Any]:
    return {"tables": [*evaluations.tables(value)], "notes": [*evaluations.lines(value)]}


@parts_of.register
def _(value: Differences) -> dict[str, Any]:
    return {"tables": [difference_table(value, *value.names)]} if value else {"lines": text_of(value)}


@parts_of.register
def _(value: Watched) -> dict[str, Any]:
    return {
        "title": title([value]),
        "answer": answer(value),
        "facts": facts([value]),
        "pictures": _pictures(charts_of(value), {"held-out": "Held-out evaluation", "updates-loss": "Training loss"}),
        "tables": [Table(COLUMNS, run_rows([value]))],
        "notes": [*value.notes()],
    }


@parts_of.register
def _(value: RunSummary) -> dict[str, Any]:
    if value.folder is not None and value.folder.is_dir():
        return parts_of(load_run(value.folder))
    return {"lines": text_of(value)}


def _pictures(charts: Charts, captions: dict[str, str]) -> Sequence[tuple[str, Markup]]:
    return [
        (caption, Markup(still(charts.by_name[name], _identifier(charts.by_name[name]), charts.colors)))
        for name, caption in captions.items()
        if name in charts.by_name
    ]


def _identifier(chart: alt.LayerChart) -> str:
    """Return a name that distinguishes the chart from those of other cells, also after the kernel was restarted."""
    return f"chart-{crc32(chart.to_json(validate=False).encode()):08x}"
