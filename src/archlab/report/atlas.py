"""Page about the atlas of published architectures. Its charts show how common each choice is in each year, and
how the proportions of models, such as width to depth, vary with the year and the size."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import altair as alt
from markupsafe import Markup, escape

from archlab.atlas.adoption import CHOICES, Choice, adoption, kinds
from archlab.atlas.models import AtlasRow, unpublished
from archlab.atlas.select import value_of
from archlab.atlas.table import (
    FIGURES,
    HEADINGS,
    LEGEND,
    LEGEND_OF_MORE,
    MARKS,
    MORE,
    SORTED_BY,
    cells,
    count,
    more,
    remarks,
    without_architecture,
)
from archlab.atlas.words import NOTHING
from archlab.files import write_page
from archlab.report.charts.marks import DASHED, chart_of, color, layered, tooltip
from archlab.report.html import render_page


def write_atlas(rows: Sequence[AtlasRow], path: Path) -> Path:
    """Write the page, creating missing parent folders, and return its path."""
    return write_page(path, render(rows))


def render(rows: Sequence[AtlasRow]) -> str:
    choices = [(choice, n_families) for choice in CHOICES if (n_families := kinds(rows, choice))]
    shapes = [proportion for proportion in SHAPES if any(row.size and proportion.of(row) for row in rows)]
    charts = {choice.field: shares(rows, choice) for choice, _ in choices}
    charts |= {chart.name: shape(rows, chart) for chart in shapes}
    charts |= {f"{chart.name}-by-size": by_size(rows, chart) for chart in shapes}
    return render_page(
        "atlas",
        charts,
        rows=rows,
        choices=choices,
        shapes=shapes,
        mlps=MLP_KINDS,
        **table_parts(),
    )


def table_parts() -> dict[str, Any]:
    """Return the variables of the macro `models_table`."""
    return {
        "headings": ("year", *HEADINGS[1:], *MORE),
        "figures": FIGURES,
        "legend": " ".join((*LEGEND, *LEGEND_OF_MORE)),
        "cells": table_cells,
        "words": search_words,
        "marks": MARKS,
        "remarks": remarks,
        "linked": linked,
        "without": without_architecture(unpublished()),
    }


class TableCell(NamedTuple):
    """Cell of the table of models."""

    text: str
    number: float | None
    """Number by which the column is sorted. None if the column is sorted by its text, or the number is unknown."""


def table_cells(row: AtlasRow) -> list[TableCell]:
    """Return the cells of a model after its name: its year, and one cell for each of HEADINGS and MORE."""
    about = row.about
    values = {heading: value_of(row, field) for heading, field in SORTED_BY.items()}
    values["active"] = row.active_parameters or about.published_active
    numbers = {heading: value for heading, value in values.items() if not isinstance(value, str)}
    texts = zip((*HEADINGS[1:], *MORE), (*cells(row)[1:], *more(row)), strict=True)
    return [
        TableCell(str(about.year), about.year),
        *(TableCell(text, numbers.get(heading) if text else None) for heading, text in texts),
    ]


def search_words(row: AtlasRow) -> str:
    """Return the words by which the filter of the page finds a model, besides the text of its rows."""
    options = {choice.of(row) for choice in CHOICES} - {NOTHING}
    return " ".join((row.preset, row.family, *sorted(options)))


_ADDRESS = re.compile(r"arXiv (?P<arxiv>\d{4}\.\d{4,5})|(?:[\w-]+\.)+(?:ai|co|com|org)/[\w./-]*\w")


def linked(source: str) -> Markup:
    """Return the text of a source as HTML, in which papers on arXiv and web addresses are links."""

    def link(found: re.Match[str]) -> str:
        address = f"arxiv.org/abs/{found['arxiv']}" if found["arxiv"] else found[0]
        return f'<a href="https://{address}">{found[0]}</a>'

    return Markup(_ADDRESS.sub(link, str(escape(source))))


_HEIGHT = 150
_SPREAD = 0.62
"""Fraction of the width of a year's column over which the dots of its models are spread."""


@dataclass(frozen=True)
class Proportion:
    """Ratio or size in a model. Its chart has one dot per model and a mark at the median of each year."""

    name: str
    title: str
    caption: str
    field: str
    """Field of the atlas that holds the proportion."""
    format: Callable[[float], str]
    ticks: tuple[float, ...]
    guides: tuple[float, ...] = ()
    """Value of the rule of thumb, or the two ends of its range. Empty if there is no rule of thumb."""

    def of(self, row: AtlasRow) -> float | None:
        """Return the proportion of a model. None if the model has none: the chart leaves it out."""
        value = value_of(row, self.field)
        return None if value is None else float(value)


_WIDTHS = (
    "Width of an MLP matrix divided by the width of the residual stream. For a mixture: all active experts together."
)

SHAPES = (
    Proportion("wide", "d_ff / d_model", _WIDTHS, "d_ff_over_d",
          lambda v: f"{v:.3g}", (1, 2, 4, 8, 16, 32, 64), (8 / 3, 4)),
    Proportion("aspect", "d_model / layers", "Wide models are at the top, deep ones at the bottom.",
          "d_over_layers", lambda v: f"{v:.0f}", (25, 50, 100, 200), (100, 200)),
    Proportion("heads-width", "heads · head_dim / d_model",
          "Width of all queries together divided by the width of the residual stream.",
          "heads_over_d", lambda v: f"{v:.3g}", (0.5, 1, 2, 4, 8, 16), (1,)),
    Proportion("vocabulary", "Vocabulary", "Number of rows of the embedding.",
          "vocab_size", lambda v: count(int(v)), (32e3, 64e3, 128e3, 256e3)),
)  # fmt: skip


def shares(rows: Sequence[AtlasRow], choice: Choice) -> alt.Chart:
    """Return a chart with one bar per year, divided into the fractions of families that chose each option."""
    options = list(kinds(rows, choice))
    data = [
        {"year": str(part.year), "kind": part.option, "order": options.index(part.option), "share": part.share,
         "text": part.text}
        for part in adoption(rows, choice)
    ]  # fmt: skip
    share = alt.Y("share:Q", stack="zero", scale=alt.Scale(domain=[0, 1]))
    return (
        chart_of(data)
        .properties(width="container", height=_HEIGHT, description=choice.title)
        .mark_bar(cornerRadius=1)
        .encode(
            x=_years(Counter(year for year, _ in {(row.about.year, row.family) for row in rows})),
            y=share.axis(title=None, format="%", values=[0, 0.5, 1], grid=False),
            color=color(options, "kind"),
            order="order:Q",
            tooltip=tooltip("kind", "text"),
        )
    )


def shape(rows: Sequence[AtlasRow], proportion: Proportion) -> alt.LayerChart:
    """Return a chart with one dot per model on a logarithmic axis, and a bar at the median of each year."""
    by_year: defaultdict[int, list[tuple[AtlasRow, float]]] = defaultdict(list)
    for row in rows:
        if (value := proportion.of(row)) is not None:
            by_year[row.about.year].append((row, value))
    dots = [dot for year, group in by_year.items() for dot in _dots(year, group, proportion)]
    middle = [
        {"year": str(year), "offset": 0.5, "value": median(value for _, value in group)}
        for year, group in by_year.items()
    ]
    y = upright(proportion, [dot["value"] for dot in dots])
    x = _years({year: len(group) for year, group in by_year.items()})
    offset = alt.XOffset("offset:Q", scale=alt.Scale(domain=[0.15, 0.85]))
    points = chart_of(dots).mark_point(filled=True, size=34, opacity=0.55, style="dots")
    bars = chart_of(middle).mark_point(shape="stroke", size=500, strokeWidth=2, style="median")
    layers = [
        points.encode(x=x, xOffset=offset, y=y, href="href:N", tooltip=tooltip("model", "text")),
        bars.encode(x=x, xOffset=offset, y=y),
    ]
    return layered(layers, proportion.title, _HEIGHT + 60)


def upright(proportion: Proportion, values: Sequence[float]) -> alt.Y:
    scale = alt.Scale(type="log", domain=ends(proportion, values), nice=False)
    label = "datum.value >= 1000 ? datum.value / 1000 + 'K' : datum.value"
    return alt.Y("value:Q", scale=scale).axis(title=None, values=list(proportion.ticks), labelExpr=label)


def ends(proportion: Proportion, values: Sequence[float]) -> tuple[float, float]:
    """Return the two ends of the axis. The axis covers all values and ticks."""
    return min(*values, proportion.ticks[0]) / 1.1, max(*values, proportion.ticks[-1]) * 1.1


def _dots(year: int, group: Sequence[tuple[AtlasRow, float]], proportion: Proportion) -> Iterator[dict[str, Any]]:
    for index, (row, value) in enumerate(group):
        offset = 0.5 + _SPREAD * ((index + 0.5) / len(group) - 0.5)
        yield {"model": row.about.name, "href": _part(row), "year": str(year), "offset": offset, "value": value,
               "text": f"{proportion.title} {proportion.format(value)}"}  # fmt: skip


def _part(row: AtlasRow) -> str:
    """Return the address of the part of the page about this model."""
    return f"#model-{row.preset}"


def _years(n: Mapping[int, int]) -> alt.X:
    years = [str(year) for year in range(min(n), max(n) + 1)]
    numbers = "{" + ", ".join(f"'{year}': '{n.get(int(year), 0)}'" for year in years) + "}"
    axis = alt.Axis(
        title=None, labelAngle=0, grid=False, labelExpr=f"['’' + slice(datum.label, 2), {numbers}[datum.label]]"
    )
    return alt.X("year:O", scale=alt.Scale(domain=years), axis=axis)


MLP_KINDS = ("plain MLP", "gated MLP", "mixture of experts", "no MLP")
"""Kinds of MLP, in the order of their colors."""

_SIZES_HEIGHT = 300
"""Height of the charts, in pixels."""
_SIZES_WIDTH, _SIZES_WIDTH_ON_A_PHONE = 430, 280
"""Widths for which the names of models are placed, in pixels. They are typical for a chart beside another one, and for
a chart on a phone."""
_ON_A_PHONE = "width < 380"
"""Vega expression that is true on a phone. There, a chart is narrower than beside another one."""
_LETTER, _LINE = 6.6, 13
"""Letter width and line height of model names, in pixels."""
_GAP = 8
"""Gap between a dot and the name of its model, in pixels."""
_UNUSUAL = 1.4
"""The chart shows a model's name if its value differs from the rule of thumb by at least this factor."""
_SIZES = (1e8, 1e9, 1e10, 1e11, 1e12)
_SIZE = "datum.value >= 1e12 ? '1T' : datum.value >= 1e9 ? datum.value / 1e9 + 'B' : datum.value / 1e6 + 'M'"
"""Vega expression that formats model sizes, such as 1e9 as `1B`."""

Box = tuple[float, float, float, float]
"""Left, right, upper and lower edges of a rectangle."""


def by_size(rows: Sequence[AtlasRow], proportion: Proportion) -> alt.LayerChart:
    """Return a chart of the proportion over model size, with one dot per model whose size is known. Both axes are
    logarithmic. Lines mark the rule of thumb."""
    dots = [
        {"model": row.about.name, "href": _part(row), "size": row.size, "value": value, "kind": _mlp_kind(row),
         "text": f"{count(row.size)}, {proportion.title} {proportion.format(value)}"}
        for row in rows
        if row.size is not None and (value := proportion.of(row)) is not None
    ]  # fmt: skip
    domain = [min(dot["size"] for dot in dots) / 1.3, max(dot["size"] for dot in dots) * 1.3]
    axis = alt.Axis(title=None, values=list(_SIZES), grid=False, labelExpr=_SIZE)
    x = alt.X("size:Q", scale=alt.Scale(type="log", domain=domain, nice=False), axis=axis)
    y = upright(proportion, [dot["value"] for dot in dots])
    points = chart_of(dots).mark_point(filled=True, size=46, opacity=0.7)
    guides = [{"value": value} for value in proportion.guides]
    layers = [
        *([chart_of(guides).mark_rule(strokeDash=DASHED, style="notch").encode(y=y)] if guides else []),
        points.encode(x=x, y=y, href="href:N", color=color(MLP_KINDS, "kind"), tooltip=tooltip("model", "text")),
    ]
    for width, is_shown in ((_SIZES_WIDTH, f"!({_ON_A_PHONE})"), (_SIZES_WIDTH_ON_A_PHONE, _ON_A_PHONE)):
        sides = list(_named(dots, proportion, domain, width))
        for direction in (1, -1):
            named = chart_of([dot for dot, side in sides if side == direction]).transform_filter(is_shown)
            align = "left" if direction > 0 else "right"
            text = named.mark_text(align=align, dx=direction * _GAP, fontSize=11, baseline="middle")
            layers.append(text.encode(x=x, y=y, text="model:N"))
    return layered(layers, f"{proportion.title} by size", _SIZES_HEIGHT)


def _mlp_kind(row: AtlasRow) -> str:
    if row.gated is None:
        return MLP_KINDS[3]
    return MLP_KINDS[2] if row.n_experts else MLP_KINDS[row.gated]


def _named(
    dots: Sequence[dict[str, Any]], proportion: Proportion, domain: Sequence[float], width: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the models that are far from the rule of thumb, starting with the farthest. Each comes with the side of its
    dot (1: right, -1: left) on which its name covers no dot and no other name, if the chart is `width` pixels wide."""
    if not proportion.guides:
        return
    low, high = proportion.guides[0], proportion.guides[-1]
    beyond = {dot["model"]: max(dot["value"] / high, low / dot["value"]) for dot in dots}
    places = {dot["model"]: _place(dot, dots, proportion, domain, width) for dot in dots}
    taken = list[Box]()
    for dot in sorted(dots, key=lambda dot: -beyond[dot["model"]]):
        if beyond[dot["model"]] < _UNUSUAL:
            return
        x, y = places[dot["model"]]
        others = [_around(*place, 4, 4) for model, place in places.items() if model != dot["model"]]
        half = _LETTER * len(dot["model"]) / 2
        for side in (1, -1):
            box = _around(x + side * (_GAP + half), y, half, _LINE / 2)
            if box[0] >= 0 and box[1] <= width and not any(meet(box, other) for other in (*taken, *others)):
                taken.append(box)
                yield dot, side
                break


def _place(
    dot: dict[str, Any], dots: Sequence[dict[str, Any]], proportion: Proportion, domain: Sequence[float], width: int
) -> tuple[float, float]:
    low, high = ends(proportion, [other["value"] for other in dots])
    x = math.log(dot["size"] / domain[0]) / math.log(domain[1] / domain[0])
    return width * x, _SIZES_HEIGHT * (1 - math.log(dot["value"] / low) / math.log(high / low))


def _around(x: float, y: float, half_width: float, half_height: float) -> Box:
    return x - half_width, x + half_width, y - half_height, y + half_height


def meet(a: Box, b: Box) -> bool:
    """Return whether two rectangles overlap."""
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
