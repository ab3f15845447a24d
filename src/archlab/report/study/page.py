"""Report of a study: one HTML file that opens offline, and a PNG of its main charts."""

import re
import textwrap
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.evidence.claims import cited
from archlab.evidence.results import Results
from archlab.files import REPORT, write_atomic
from archlab.pricing.units import binary, count, seconds
from archlab.report.charts.files import SCALE, drawn_by
from archlab.report.charts.palette import MODES, still_theme
from archlab.report.html import render_page, sentence
from archlab.report.ledger import words as ledger_words
from archlab.report.ledger import words_over_sizes
from archlab.report.study import arms, curves
from archlab.report.study.arms import arm_colors, labels
from archlab.report.study.claims import claims_of, explained
from archlab.report.study.curves import depth_probes, time_probes
from archlab.report.study.factors import interaction, levels_of, pairs
from archlab.report.study.grids import sweep, tuned_fields, tuning
from archlab.report.study.sizes import over_sizes
from archlab.study.formatting import (
    amount,
    contrast_text,
    difference,
    diverged,
    interval,
    interval_of_equivalence,
    margin_of,
    p_value,
    span,
    verdict,
    with_unit,
)
from archlab.study.record import StudySummary
from archlab.study.summary_file import csv_of_runs


class _Other(NamedTuple):
    """Secondary outcome of a study."""

    name: str
    """Name of the place on the page for the outcome's chart."""
    study: StudySummary
    """Summary of the study in which this outcome is the primary one."""


def write_page(summary: StudySummary, folder: Path) -> Path:
    """Write `report.html` into the folder atomically, and return its path."""
    page = folder / REPORT
    write_atomic(page, render(summary))
    return page


def write_picture(summary: StudySummary, folder: Path) -> None:
    """Write `report.png` into the folder atomically. Raise UserError if it cannot be drawn."""
    write_atomic(folder / "report.png", picture(summary))


def render(summary: StudySummary) -> str:
    functions = (
        margin_of,
        p_value,
        span,
        seconds,
        verdict,
        diverged,
        binary,
        count,
        to_yaml,
        amount,
        contrast_text,
        difference,
        interval,
        interval_of_equivalence,
        with_unit,
        levels_of,
        arms.levels_show,
        arms.reference_of,
    )
    others = [_Other(f"other-{i}", summary.by(other.outcome.name)) for i, other in enumerate(summary.others)]
    _, claims = claims_of(summary)
    depth, time = depth_probes(summary), time_probes(summary)
    charts = charts_of(summary, others) | {probe.name: probe.chart for probe in (*depth, *time)}
    return render_page(
        "study",
        charts,
        {mode: arm_colors(summary, mode) for mode in MODES},
        s=summary,
        others=others,
        tuned_fields=tuned_fields(summary),
        pairs=pairs(summary),
        depth_probes=depth,
        time_probes=time,
        labels=labels(summary),
        claims=claims,
        explained=[] if claims else explained(summary),
        words=ledger_words,
        words_over_sizes=words_over_sizes,
        cited=cited,
        captions={
            "differences": arms.DIFFERENCES_SHOW,
            "lines": curves.LINES_SHOW,
            "thin_lines": curves.THIN_LINES_SHOW,
        },
        by_name={arm.name: arm for arm in summary.arms},
        csv=f"data:text/csv;base64,{b64encode(csv_of_runs(summary).encode()).decode()}",
        value=to_yaml_line,
        has_task=summary.arms[0].config.get("data", {}).get("task", {}).get("kind", "none") != "none",
        **{function.__name__: function for function in functions},
    )


def charts_of(summary: StudySummary, others: Sequence[_Other] = ()) -> dict[str, alt.LayerChart | None]:
    """Map the name of each place on the page to its chart, or to None if there is nothing to draw."""
    return dict(_charts(summary, others))


def _charts(summary: StudySummary, others: Sequence[_Other]) -> Iterator[tuple[str, alt.LayerChart | None]]:
    yield "levels", arms.levels(summary)
    yield "differences", arms.differences(summary)
    if arms.levels_are_cut(summary):
        yield "levels-whole", arms.levels(summary, whole=True)
    if arms.differences_are_cut(summary):
        yield "differences-whole", arms.differences(summary, whole=True)
    for i, pair in enumerate(pairs(summary)):
        yield f"factors-{i}", interaction(summary, pair)
    yield "sizes", over_sizes(summary)
    yield "curves", curves.evaluations(summary)
    yield "curves-end", curves.last_half(summary)
    yield "losses", curves.updates(summary, curves.LOSS)
    yield "gradients", curves.updates(summary, curves.GRADIENT)
    yield "sweep", sweep(summary)
    for i, field in enumerate(tuned_fields(summary)):
        yield f"tuning-{i}", tuning(summary, field)
    for other in others:
        if any(arm.comparison and arm.comparison.difference is not None for arm in other.study.arms):
            yield other.name, arms.differences(other.study, compared_only=True)
        if arms.differences_are_cut(other.study):
            yield f"{other.name}-whole", arms.differences(other.study, compared_only=True, whole=True)


_PANEL = 460
"""Width in pixels of each of the two upper panels, before scaling."""


_HALF = 330
"""Width in pixels of a panel of learning curves. The names of arms to the right of the curves need additional width."""

_LINE = 80
"""Maximum number of characters in a line of a panel's caption."""


def picture(summary: StudySummary) -> bytes:
    """Return a PNG of the study in the colors of light mode. Raise UserError if the picture cannot be drawn.

    The study's question is the title. Below it are the outcomes of the arms and, beside them, the differences from the
    reference. The learning curves are at the bottom.
    """
    spec, config = drawn(summary)
    return drawn_by(lambda: vl_convert.vegalite_to_png(spec, config=config, scale=SCALE))


def forest_picture(results: Results, title: str) -> str:
    """Return an SVG of the differences in committed results, in the colors of light mode. It has a title, and one row
    per comparison."""
    labels_by_name = {arm.name: arm.label for arm in results.about.arms}
    outcome = results.heading(None)
    comparisons = {name: statistics.comparison for name, statistics in results.compared().items()}
    rows = [
        arms.comparison_row(
            f"{labels_by_name[name]} vs {labels_by_name[comparison.reference]}", comparison, outcome.unit
        )
        for name, comparison in comparisons.items()
        if comparison
    ]
    first = results.about.arms[0]
    scale = f"{count(first.parameters)} parameters, {count(first.tokens)} training tokens, {len(results.folds)} seeds."
    text = alt.TitleParams(title, subtitle=[scale, arms.DIFFERENCES_SHOW], fontSize=18, offset=18)
    chart = arms.forest(rows, outcome, 2 * _HALF, legend=True, whole=True).properties(title=text, padding=24)
    svg = vl_convert.vegalite_to_svg(chart.to_dict(validate=False), config=still_theme([]))
    # Vega numbers the clip paths of all pictures of a process. Here they begin at 1.
    names = list(dict.fromkeys(re.findall(r"\bclip\d+", svg)))
    return re.sub(r"\bclip\d+", lambda name: f"clip{names.index(name[0]) + 1}", svg)


def drawn(summary: StudySummary) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Vega-Lite spec of the PNG, and the Vega-Lite config that contains its colors."""
    rows = [_arm_panels(summary, whole=False)]
    if arms.levels_are_cut(summary) or arms.differences_are_cut(summary):
        rows.append(_arm_panels(summary, whole=True))
    parts = [*rows, *_curve_panels(summary)]
    question = textwrap.wrap(summary.question, 110)
    title = alt.TitleParams(question, subtitle=textwrap.wrap(summary.answer, 150), fontSize=18, offset=18)
    chart = alt.vconcat(*parts, spacing=36, padding=24, title=title).resolve_scale(color="independent")
    return chart.to_dict(validate=False), still_theme(arm_colors(summary, "light"))


def _arm_panels(summary: StudySummary, *, whole: bool) -> alt.HConcatChart:
    title, beyond = summary.outcome.title, ", the whole range" if whole else ""
    levels = arms.levels(summary, _PANEL, whole=whole)
    charts = [_titled(levels, f"{sentence(title)}{beyond}", arms.levels_show(summary))]
    if differences := arms.differences(summary, _PANEL, legend=True, whole=whole):
        title = "Step by step" if summary.against == "previous" else f"Difference from {arms.reference_of(summary)}"
        charts.append(_titled(differences, f"{title}{beyond}", arms.DIFFERENCES_SHOW))
    return _beside(charts)


def _curve_panels(summary: StudySummary) -> list[alt.HConcatChart]:
    caption = curves.LINES_SHOW
    if any(arm.diverged for arm in summary.arms):
        caption = f"{caption} {curves.THIN_LINES_SHOW}"
    titles = {"Whole training": caption, "Second half": "The same evaluations on their own axes."}
    curve_charts = (curves.evaluations(summary, _HALF), curves.last_half(summary, _HALF))
    charts = [_titled(chart, *title) for chart, title in zip(curve_charts, titles.items(), strict=True) if chart]
    return [_beside(charts)] if charts else []


def _titled(chart: alt.LayerChart, title: str, caption: str) -> alt.LayerChart:
    return chart.properties(title=alt.TitleParams(title, subtitle=textwrap.wrap(caption, _LINE), offset=14))


def _beside(charts: list[alt.LayerChart]) -> alt.HConcatChart:
    return alt.hconcat(*charts, spacing=48).resolve_scale(color="independent", shape="independent")
