"""Atlas of published models: charts and a table that filter each other. Every view is a URL."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from archlab.atlas.adoption import CHOICES, Choice, adoption, kinds
from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow, PublishedModel, entries, row
from archlab.atlas.select import ABOUT, fields_of, select, value_of
from archlab.atlas.words import NOTHING
from archlab.config.about import About
from archlab.config.problems import choose, nearest
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.report.atlas import SHAPES, Box, meet
from archlab.ui.configs import Variant, load, overrides_in, path_below
from archlab.ui.scatter import AXES, Axis, Place, axis_of, guides, label, places, value_text

X, Y, COLOR = "size", "d_ff_over_d", "heads"
"""Fields of the axes and of the colors when the URL names none."""

_MOST_NAMES = 30
"""Maximum number of chosen models whose names are shown in the chart."""

_LETTER, _LINE = 0.85, 4.0
"""Width of a letter and height of a line, in percent of the chart on a screen of 1280 pixels. Phones show no names."""

_SETTINGS = ("x", "y", "color", "sort", "mine", "add")
_CHANGES = re.compile(r"\s+(?=(?:model|train)\.[\w.]+=)")
"""Space between a config and a field that it changes. Values of fields may contain spaces."""


@cache
def published() -> dict[str, tuple[AtlasRow, Config]]:
    """Return the row and the config of each published model by name of its preset, sorted by year."""
    return {entry.preset: (row(entry), entry.config) for entry in entries()}


@cache
def published_rows() -> list[AtlasRow]:
    """Return the rows of all published models, sorted by year."""
    return [row for row, _ in published().values()]


@cache
def config_axes() -> list[str]:
    """Return the fields of the config in which published models differ."""
    found: dict[str, set[Value]] = {}
    for model in published_rows():
        for field, value in model.config_fields.items():
            found.setdefault(field, set()).add(value)
    return [field for field, values in found.items() if len(values - {None}) > 1]


@dataclass(frozen=True)
class ModelsView:
    """Settings in the URL of the screen."""

    conditions: tuple[str, ...] = ()
    """Conditions that the models must meet, as for `archlab list --filter`."""
    x: str = X
    y: str = Y
    color: str = COLOR
    sort: str = ""
    """Field by which the table is sorted, as for `archlab list --sort`. Empty: by year."""
    mine: str = ""
    """Config of the user, as in `llama-3-8b model.n_layers=16`. Empty: none."""

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> "ModelsView":
        """Read the URL. Raise UserError if a field does not exist.

        Each name in the query that is not a setting is a condition: `year>=2024` has the name `year>`.
        """
        settings, conditions = dict[str, str](), list[str]()
        for name, value in query:
            if name not in _SETTINGS:
                conditions.append(f"{name}={value}" if value else name)
            elif name == "add":
                conditions += [value.strip()] if value.strip() else []
            elif value.strip():
                settings[name] = value.strip()
        for name, allowed in (("x", AXES), ("y", AXES), ("color", [choice.field for choice in CHOICES])):
            value = settings.get(name, allowed[0])
            if value not in allowed and (name == "color" or value not in config_axes()):
                raise UserError(f"{name} is {value!r}{nearest(value, config_axes()) or choose(value, allowed)}")
        return cls(tuple(dict.fromkeys(conditions)), **settings)

    @property
    def address(self) -> str:
        """Path and query of the screen."""
        default = ModelsView()
        names = [name for name in _SETTINGS[:-1] if getattr(self, name) != getattr(default, name)]
        settings = [f"{name}={_quoted(getattr(self, name))}" for name in names]
        query = "&".join([*map(_quoted, self.conditions), *settings])
        return f"/models{'?' if query else ''}{query}"

    @property
    def commands(self) -> list[str]:
        """Commands that print the same models, and write them as a page with the same charts."""
        chosen = ["--filter", *self.conditions] if self.conditions else []
        sort = ["--sort", self.sort] if self.sort else []
        listed = ["archlab", "list", "presets", *chosen, *sort]
        return [shlex.join(listed), shlex.join([*listed, "--html", "models.html"])]

    def toggled(self, *added: str) -> "ModelsView":
        """Return the view with these conditions instead of all others on their fields. If it has them already, return
        it without them."""
        if {*added} <= {*self.conditions}:
            return replace(self, conditions=tuple(text for text in self.conditions if text not in added))
        return replace(self, conditions=(*self.without(*fields_of(added, None)).conditions, *added))

    def without(self, *fields: str) -> "ModelsView":
        """Return the view without the conditions on these fields."""
        kept = (text for text in self.conditions if not {*fields_of([text], None)} & {*fields})
        return replace(self, conditions=tuple(kept))

    def without_all(self) -> "ModelsView":
        """Return the view without conditions."""
        return replace(self, conditions=())

    def sorted_by(self, field: str) -> "ModelsView":
        """Return the view sorted by a field. If it is already, reverse the order."""
        return replace(self, sort=f"-{field}" if self.sort == field else field)


def _quoted(text: str) -> str:
    return quote(text, safe="=|,:@/")


class Option(NamedTuple):
    """Option of a choice, with the link that selects its models."""

    name: str
    n_families: int
    color: int
    address: str
    is_chosen: bool
    is_mine: bool


class Part(NamedTuple):
    """Part of the bar of a year."""

    option: str
    color: int
    share: float
    text: str
    address: str
    is_chosen: bool
    """Whether the models of this part meet the conditions."""


class Panel(NamedTuple):
    """Adoption of a choice over the years."""

    choice: Choice
    options: list[Option]
    years: dict[int, list[Part]]


class Year(NamedTuple):
    """Number of models of a year, with the link that selects them."""

    year: int
    n: int
    """Number of models that meet all conditions except those on the year."""
    total: int
    address: str
    is_chosen: bool


class UserConfig(NamedTuple):
    """Config of the user."""

    text: str
    row: AtlasRow
    is_published: bool

    def value(self, field: str) -> Value:
        return value_of(self.row, field) if self.is_published or field not in ABOUT else None


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
    guides: list[float]
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


@dataclass(frozen=True)
class ModelsScreen:
    """Everything that the screen shows."""

    view: ModelsView
    chosen: list[AtlasRow]
    total: int
    years: list[Year]
    panels: list[Panel]
    scatter: Scatter
    mine: UserConfig | None

    @property
    def max_per_year(self) -> int:
        """Largest number of models in a year."""
        return max(year.total for year in self.years)


def models_screen(view: ModelsView, root: Path) -> ModelsScreen:
    """Return the screen of a view. Raise UserError if a condition is not valid, or if no model meets all of them."""
    chosen = chosen_models(view)
    mine = _mine(view.mine, root) if view.mine else None
    years = {
        row.about.year for row in chosen_models(ModelsView(tuple(t for t in view.conditions if _is_about(t, "year"))))
    }
    panels = [_panel(view, choice, years, mine) for choice in CHOICES]
    colors = next(panel for panel in panels if panel.choice.field == view.color)
    return ModelsScreen(
        view, chosen, len(published_rows()), _years(view, years), panels, _scatter(view, chosen, colors, mine), mine
    )


def chosen_models(view: ModelsView) -> list[AtlasRow]:
    """Return the models that meet the conditions of a view, in its order. Raise UserError if there are none."""
    return select(published_rows(), view.conditions, view.sort or None)


def _is_about(text: str, field: str) -> bool:
    return fields_of([text], None) == [field]


def _years(view: ModelsView, chosen: set[int]) -> list[Year]:
    selected = Counter(row.about.year for row in chosen_models(view.without("year")))
    totals = Counter(row.about.year for row in published_rows())
    return [
        Year(year, selected[year], totals[year], view.toggled(f"year={year}").address, year in chosen)
        for year in range(min(totals), max(totals) + 1)
    ]


def _panel(view: ModelsView, choice: Choice, years: set[int], mine: UserConfig | None) -> Panel:
    """Return the adoption of a choice among the models that meet all conditions except those on the choice itself and
    on the year. The options and years that these exclude are marked."""
    everything = published_rows()
    own = tuple(text for text in view.conditions if _is_about(text, choice.field))
    allowed = {choice.of(row) for row in chosen_models(ModelsView(own))}
    compared = chosen_models(replace(view, sort="").without(choice.field, "year"))
    conditions = conditions_of(choice)
    colors = {option: index for index, option in enumerate(conditions)}
    n_families = kinds([row for row in compared if row.about.year in years], choice)
    options = [
        Option(
            name, n_families.get(name, 0), color, view.toggled(conditions[name]).address,
            bool(own) and name in allowed, mine is not None and choice.of(mine.row) == name,
        )
        for name, color in colors.items()
    ]  # fmt: skip
    bars: dict[int, list[Part]] = {year: [] for year in sorted({row.about.year for row in everything})}
    for part in sorted(adoption(compared, choice), key=lambda part: colors[part.option]):
        address = view.toggled(conditions[part.option], f"year={part.year}").address
        is_chosen = part.option in allowed and part.year in years
        text = f"{part.option}, {part.text} families"
        bars[part.year].append(Part(part.option, colors[part.option], part.share, text, address, is_chosen))
    return Panel(choice, options, bars)


@cache
def conditions_of(choice: Choice) -> Mapping[str, str]:
    """Return the condition that selects each option of a choice."""
    everything = published_rows()
    return {option: choice.condition(option, everything) for option in kinds(everything, choice)}


def _scatter(view: ModelsView, chosen: Sequence[AtlasRow], colors: Panel, mine: UserConfig | None) -> Scatter:
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


def _mine(text: str, root: Path) -> UserConfig:
    """Return the row of the user's config. A config of the user has no published facts, such as a year."""
    name, *changes = _CHANGES.split(text.strip())
    if not changes and name in published() and path_below(name, root) is None:
        return UserConfig(text, published()[name][0], True)
    fields = overrides_in((field, value) for field, _, value in (change.partition("=") for change in changes))
    shape = load(Variant(name, fields), root)
    about = About(
        name=text, year=2017, source=(name,), certainty="verified", cannot_build=shape.part or None
    )  # its year and its sources are never shown
    return UserConfig(text, row(PublishedModel(text, about, shape.config)), False)
