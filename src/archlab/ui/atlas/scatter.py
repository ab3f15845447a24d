"""Chart of the atlas over two fields: a dot for each model, with its name if there is room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archlab.atlas.models import AtlasRow
from archlab.atlas.select import value_of
from archlab.atlas.words import NOTHING
from archlab.report.atlas import SHAPES, Box, meet
from archlab.ui.atlas.axes import Axis, Place, axis_of, guides, label, places, value_text
from archlab.ui.atlas.bars import Panel
from archlab.ui.atlas.published import published_rows
from archlab.ui.atlas.star import UserConfig
from archlab.ui.atlas.view import ModelsView

_MOST_NAMES = 30
"""Maximum number of chosen models whose names are shown in the chart."""

_LETTER, _LINE = 0.85, 4.0
"""Width of a letter and height of a line, in percent of the chart on a screen of 1280 pixels. Phones show no names."""


class Dot(NamedTuple):
    """Point of a model in the chart over two fields."""

    row: AtlasRow
    place: Place
    text: str
    color: int | None
    """Index of the color. None if the choice does not apply to the model."""


@dataclass(frozen=True)
class Scatter:
    """Chart over two fields."""

    x: Axis
    y: Axis
    chosen: list[Dot]
    others: list[Place]
    star: Dot | None
    n_unknown: int
    """Number of chosen models that are not in the chart, because a field is unknown."""
    guides: list[tuple[float, str]]
    colors: Panel

    @property
    def named(self) -> list[tuple[Dot, int]]:
        """Models whose name the chart shows, if few are chosen, with the side of the dot (1: right, -1: left). A name
        that would cover a dot or another name is left out."""
        if len(self.chosen) > _MOST_NAMES:
            return []
        found = list[tuple[Dot, int]]()
        for dot in self.chosen:
            dots = [_box(*other.place, 1) for other in self.chosen if other is not dot]
            taken = [*dots, *(_name_box(*named) for named in found)]
            for side in (1, -1):
                name = _name_box(dot, side)
                if name[0] >= 0 and name[1] <= 100 and not any(meet(name, other) for other in taken):
                    found.append((dot, side))
                    break
        return found


def _name_box(dot: Dot, side: int) -> Box:
    half = _LETTER * len(dot.row.about.name) / 2
    return _box(dot.place.left + side * (half + 1.2), dot.place.top, half)


def _box(x: float, y: float, half_width: float) -> Box:
    """Return a rectangle of the height of a line, in percent of the chart."""
    return x - half_width, x + half_width, y - _LINE / 2, y + _LINE / 2


def scatter_chart(view: ModelsView, chosen: Sequence[AtlasRow], colors: Panel, mine: UserConfig | None) -> Scatter:
    """Return the chart of a view. Its colors are those of the options of a choice."""
    everything = published_rows()
    x, y = (
        axis_of(field, [*(value_of(row, field) for row in everything), mine.value(field) if mine else None])
        for field in (view.x, view.y)
    )
    at = places(everything, x, y)
    by_option = {option.name: option.color for option in colors.options}

    def dot(model: AtlasRow, place: Place) -> Dot:
        values = (f"{label(axis.field)} {value_text(axis.field, value_of(model, axis.field))}" for axis in (x, y))
        option = colors.choice.of(model)
        words = [*dict.fromkeys(values), *([] if option == NOTHING or view.color in (x.field, y.field) else [option])]
        return Dot(model, place, ", ".join(words), by_option.get(option))

    selected = {model.preset for model in chosen}
    star = None
    if mine and None not in (mine.value(view.x), mine.value(view.y)):
        own = at[mine.row.preset] if mine.is_published else places([mine.row], x, y)[mine.row.preset]
        star = dot(mine.row, own)
    return Scatter(
        x, y,
        [dot(model, at[model.preset]) for model in chosen if model.preset in at],
        [place for preset, place in at.items() if preset not in selected],
        star,
        sum(model.preset not in at for model in chosen),
        guides(y, {shape.field: shape.guides for shape in SHAPES}),
        colors,
    )  # fmt: skip
