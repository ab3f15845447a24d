"""Page of a published model: its facts with their sources, how sure each of them is, and its diagram."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from markupsafe import Markup

from archlab.atlas.adoption import CHOICES
from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow, unpublished
from archlab.atlas.select import value_of
from archlab.atlas.table import CERTAINTIES
from archlab.atlas.words import NOTHING
from archlab.config.about import About
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.config.io import find_preset, presets
from archlab.config.schema import Config
from archlab.evidence.look_up import topic_of
from archlab.evidence.usage import users
from archlab.exchange.configs import hint_for
from archlab.report.drawings.block import block_diagram
from archlab.ui.atlas.axes import NUMBERS, value_text
from archlab.ui.atlas.bars import conditions_of
from archlab.ui.atlas.published import published, published_rows
from archlab.ui.atlas.view import ModelsView, X
from archlab.ui.configs import ComparedConfigs, UnknownNameError, Variant
from archlab.ui.values import shown_fields


class NotInAtlasError(Exception):
    """The model has another page, `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class Fact(NamedTuple):
    """Fact about a model, compared with the other published models."""

    label: str
    value: str
    compared: str
    address: str
    """Screen that shows the comparison."""


class Setting(NamedTuple):
    """Field of the resolved config."""

    field: str
    value: str
    n_models: str
    """Number of published models with the same value. Empty for fields that are not counted."""
    is_doubted: bool
    topic: str
    """Topic that explains the field, or the field."""


@dataclass(frozen=True)
class ModelPage:
    """Everything that the page shows. Parts that follow from the architecture are empty if it is not published."""

    name: str
    about: About
    origin: str
    """Origin of the config."""
    row: AtlasRow | None
    diagram: Markup
    choices: list[Fact]
    numbers: list[Fact]
    settings: list[Setting]
    relatives: list[AtlasRow]
    """Other sizes of the family."""
    commands: list[str]

    @property
    def compared(self) -> ComparedConfigs:
        """The model, for a comparison with another one."""
        return ComparedConfigs((Variant(self.name, {}),))


def model_page(name: str) -> ModelPage:
    """Return the page of a published model.

    Raise NotInAtlasError if the name is another spelling, or that of a preset of archlab's own, and UnknownNameError if
    it is unknown.
    """
    if name in published():
        return _page(name)
    if about := unpublished().get(name):
        return ModelPage(name, about, CERTAINTIES[about.certainty], None, Markup(), [], [], [], [], [])
    if (file := find_preset(name)) is None:
        raise UnknownNameError(f"unknown model {name!r}{hint_for(name)}")
    found = file.name.removesuffix(".yaml")
    is_own = found in presets() and found not in published()
    raise NotInAtlasError(f"/{'m' if is_own else 'models'}/{found}")


@cache
def _page(name: str) -> ModelPage:
    row, config = published()[name]
    about = row.about
    commands = [
        f"archlab list presets --filter preset=={name} --json",
        f"archlab show {name}",
        f"archlab check {name}",
        f"archlab draw {name} --out diagram.svg",
    ]
    return ModelPage(
        name=name,
        about=about,
        origin=CERTAINTIES[about.certainty],
        row=row,
        diagram=Markup(block_diagram(config, about.name, remark=about.part)),
        choices=_choices(row),
        numbers=_numbers(row),
        settings=_settings(config, about),
        relatives=[other for other in published_rows() if other.family == row.family and other != row],
        commands=commands if about.buildable else commands[:2],
    )


def _choices(row: AtlasRow) -> list[Fact]:
    everything = published_rows()
    facts: list[Fact] = []
    for choice in CHOICES:
        if (option := choice.of(row)) == NOTHING:
            continue
        doubt = " (unverified)" if choice.doubted and row.about.doubts(choice.doubted) else ""
        with_option = [other for other in everything if choice.of(other) == option]
        n_doubted = sum(bool(choice.doubted and other.about.doubts(choice.doubted)) for other in with_option)
        text = f"{len(with_option) - n_doubted} of {len(everything)} models"
        text += f", {n_doubted} more unverified" if n_doubted else ""
        address = ModelsView((conditions_of(choice)[option],)).address
        facts.append(Fact(choice.title, option + doubt, text, address))
    return facts


def _numbers(row: AtlasRow) -> list[Fact]:
    facts: list[Fact] = []
    for field, label in NUMBERS.items():
        if (value := value_of(row, field)) is None:
            continue
        known = [other for other in (value_of(model, field) for model in published_rows()) if other is not None]
        below = sum(float(other) < float(value) for other in known)
        equal = sum(other == value for other in known) - 1
        doubt = " (unverified)" if row.about.doubts(f"about.{field}") else ""
        others = "others" if len(known) == len(published_rows()) else "others that state it"
        text = f"above {below} of {len(known) - 1} {others}" + (f", equal to {equal}" if equal else "")
        address = ModelsView(x="year" if field == X else X, y=field, mine=row.preset).address
        facts.append(Fact(label, _exact(field, value) + doubt, text, address))
    return facts


def _exact(field: str, value: Value) -> str:
    is_short = isinstance(value, int) and 1000 <= value < 10**6 and field != "context"
    return f"{value:,}" if is_short else value_text(field, value)


def _settings(config: Config, about: About) -> list[Setting]:
    settings: list[Setting] = []
    values = flatten(resolved(config))
    for path, text in shown_fields(config).items():
        if not path.startswith("model."):
            continue
        n = len(users(path, to_yaml_line(values[path])))
        doubted = about.doubts(path.removeprefix("model."))
        settings.append(Setting(path, text, str(n or ""), doubted, topic_of(path, values)))
    return settings
