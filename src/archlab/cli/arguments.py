"""Arguments that several verbs take: their types, and CONFIG with its overrides."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from archlab.config.core.base import LONGEST, memory_size, whole_number
from archlab.config.core.text import note
from archlab.config.core.yaml_text import parse_yaml
from archlab.config.io import build_config
from archlab.config.notes import notes
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import read_facts, read_named_config
from archlab.pricing.partition import MOST_DEVICES

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""

MayBeginWithDash = Parameter(allow_leading_hyphen=True)
"""For free text, which may begin like an option."""


def _number(read: Callable[[Any], Any]) -> Callable[[Any, Sequence[Token]], int]:
    """As `read` understands it in a config; cyclopts would turn 1.5 into 2. ValueError for what is no whole number."""

    def convert(_kind: Any, tokens: Sequence[Token]) -> int:
        try:
            number = read(parse_yaml(tokens[0].value, "a number"))
        except UserError as error:
            raise ValueError(str(error)) from None
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(tokens[0].value)
        return number

    return convert


_whole = _number(whole_number)

WholeNumber = Annotated[int, Parameter(converter=_whole)]
"""A whole number, written as config fields take it: 32768, 32Ki (32,768), 32K (32,000) or 4e6."""

Many = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=10**28))]
"""Parameters or FLOPs, written as config fields take them."""

Bytes = Annotated[int, Parameter(converter=_number(memory_size), validator=Number(gte=1, lte=10**16))]
"""Of memory: a number, or with a unit as in 16GiB (2^30) or 80GB (10^9)."""

Devices = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=MOST_DEVICES))]
"""How many."""

Price = Annotated[float, Parameter(validator=Number(gt=0, lte=1e9))]
"""In any currency."""

AtLeastOne = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=LONGEST))]
"""A whole number from 1, as large as a sequence may be."""


def _several(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Numbers between commas."""
    return tuple(_whole(kind, [tokens[0].evolve(value=part)]) for part in tokens[0].value.split(","))


SeveralAtLeastOne = Annotated[
    tuple[int, ...],
    Parameter(
        converter=_several, validator=Number(gte=1, lte=LONGEST), n_tokens=1, show_default=False, allow_repeating=False
    ),
]
"""One `AtLeastOne`, or several between commas."""


def check_one_answer(json: bool, html: Path | None) -> None:
    """UserError where an answer is asked for as JSON and as a page."""
    if json and html is not None:
        raise UserError("--json and --html: allowed: one of them")


def load_and_notes(config: str, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """The config, as `archlab.load_config` returns it, and what a person should know about it."""
    raw = read_named_config(config)
    loaded = build_config(raw, overrides, config)
    return loaded, notes(raw, overrides, loaded)


def load_with_notes(config: str, overrides: Sequence[str]) -> Config:
    """Load as `archlab.load_config` does, and print notes on the config to stderr."""
    loaded, found = load_and_notes(config, overrides)
    for text in found:
        note(text)
    return loaded


def load_several(config: str, more: Sequence[str]) -> dict[str, Config]:
    """Name -> config, of the first one and of `more`, in which overrides for all of them stand too."""
    overrides = [text for text in more if "=" in text]
    names = [config, *(text for text in more if "=" not in text)]
    return {name: load_with_notes(name, overrides) for name in names}


def load_shape(config: str, overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the config, as `load_with_notes` does, and an empty string. Of a model of the atlas that cannot be built,
    return the part that is known, and words that say which part it is; a verb shows them before anything else."""
    known = read_facts(config)
    if known is None:
        return load_with_notes(config, overrides), ""
    about, raw = known
    return build_config(raw, overrides, config), about.part
