"""Bars of the atlas: the adoption of each choice over the years, with links that select models."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from archlab.atlas.adoption import Choice, adoption, kinds
from archlab.ui.atlas.published import published_rows
from archlab.ui.atlas.star import UserConfig
from archlab.ui.atlas.view import ModelsView, chosen_models, is_about


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


def models_per_year(view: ModelsView, chosen: set[int]) -> list[Year]:
    """Return the number of models of each year. `chosen` contains the years that the conditions leave."""
    selected = Counter(row.about.year for row in chosen_models(view.without("year")))
    totals = Counter(row.about.year for row in published_rows())
    return [
        Year(year, selected[year], totals[year], view.toggled(f"year={year}").address, year in chosen)
        for year in range(min(totals), max(totals) + 1)
    ]


def adoption_panel(view: ModelsView, choice: Choice, years: set[int], mine: UserConfig | None) -> Panel:
    """Return the adoption of a choice among the models that meet all conditions except those on the choice itself and
    on the year. The options and years that these exclude are marked."""
    everything = published_rows()
    own = tuple(text for text in view.conditions if is_about(text, choice.field))
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
