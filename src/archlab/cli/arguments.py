"""Arguments of more than one command: types of option values, and functions that load CONFIG with its overrides."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from archlab.cli import candidates
from archlab.config.core.base import LONGEST, memory_size, whole_number
from archlab.config.core.text import note
from archlab.config.core.yaml_text import parse_integer
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange import configs as exchange
from archlab.pricing.partition import MOST_DEVICES

Flag = Annotated[bool, Parameter(show_default=False)]
"""Option without a value, such as `--json`. It is off by default."""

ConfigName = Annotated[str, Parameter(completer=candidates.configs)]
"""Preset, YAML file, run folder, Hugging Face folder or hub id."""

Override = Annotated[str, Parameter(completer=candidates.overrides)]
"""Change of a field, as in model.norm.kind=layernorm."""

OverrideOfTwo = Annotated[str, Parameter(completer=candidates.overrides_of_two)]
"""Change of a field in one of two configs, as in a.model.n_layers=16."""

ConfigOrOverride = Annotated[str, Parameter(completer=candidates.configs_and_overrides)]
"""Further config, or a change of a field in all configs."""

FolderName = Annotated[str, Parameter(completer=candidates.paths)]
"""Run folder, Hugging Face folder or hub id."""

CodeName = Annotated[str, Parameter(completer=candidates.paths)]
"""Python file and the name of code in it, as in mine.py:RMSNorm."""

StudyName = Annotated[str, Parameter(completer=candidates.studies)]
"""Study of the library, YAML file or study folder."""

DeviceName = Annotated[str, Parameter(completer=candidates.devices)]
"""Device of the library, several of one kind, or a YAML file."""

TopicName = Annotated[str, Parameter(completer=candidates.topics)]
"""Topic, field or value that `archlab explain` explains."""

ClaimName = Annotated[str, Parameter(completer=candidates.claims)]
"""Number or name of a claim in the ledger."""

ExtraName = Annotated[str, Parameter(completer=candidates.extras)]
"""Extra of archlab, as in `pip install 'archlab[gguf]'`."""

MayBeginWithDash = Parameter(allow_leading_hyphen=True)
"""Parameter for free text, which may begin with a dash like an option."""


def _number(read: Callable[[Any], Any]) -> Callable[[Any, Sequence[Token]], int]:
    """Return a converter for cyclopts: it parses an integer with `read`, the function that also parses integers in
    configs.

    The converter raises ValueError if the value is not an integer. The converter that cyclopts uses by default would
    round 1.5 to 2.
    """

    def convert(_kind: Any, tokens: Sequence[Token]) -> int:
        try:
            number = parse_integer(tokens[0].value, read)
        except UserError as error:
            raise ValueError(str(error)) from None
        if number is None:
            raise ValueError(tokens[0].value)
        return number

    return convert


_whole = _number(whole_number)

WholeNumber = Annotated[int, Parameter(converter=_whole)]
"""Integer, written as in a config: 32768, 32Ki (32,768), 32K (32,000) or 4e6."""

Many = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=10**28))]
"""Number of parameters or FLOPs, written as in a config: 1B or 4e21."""

Bytes = Annotated[int, Parameter(converter=_number(memory_size), validator=Number(gte=1, lte=10**16))]
"""Number of bytes, with or without a unit: 16GiB (1 GiB is 2^30 bytes) or 80GB (1 GB is 10^9 bytes)."""

Devices = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=MOST_DEVICES))]
"""Number of devices, at most MOST_DEVICES."""

Price = Annotated[float, Parameter(validator=Number(gt=0, lte=10**9))]
"""Price of a device per hour, in any currency."""

AtLeastOne = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1, lte=LONGEST))]
"""Positive integer. The maximum is LONGEST, the longest sequence that a config allows."""


def _several(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(_whole(kind, [tokens[0].evolve(value=part)]) for part in tokens[0].value.split(","))


SeveralAtLeastOne = Annotated[
    tuple[int, ...],
    Parameter(
        converter=_several, validator=Number(gte=1, lte=LONGEST), n_tokens=1, show_default=False, allow_repeating=False
    ),
]
"""One or more positive integers, separated by commas."""


def check_one_answer(json: bool, html: Path | None) -> None:
    """Raise UserError if the user asks for both JSON (`--json`) and an HTML page (`--html`)."""
    if json and html is not None:
        raise UserError("--json and --html cannot be combined; use one of them")


def load_with_notes(config: str, overrides: Sequence[str]) -> Config:
    """Load a config as `archlab.load_config` does, and print notes about it to stderr."""
    loaded, texts = exchange.load_and_notes(config, overrides)
    for text in texts:
        note(text)
    return loaded


def split_overrides(config: str, more: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (names of configs, overrides). `more` contains further names, and overrides, which have the form
    `key=value`."""
    return [config, *(text for text in more if "=" not in text)], [text for text in more if "=" in text]


def load_several(config: str, more: Sequence[str]) -> dict[str, Config]:
    """Load several configs and return them by name.

    `more` contains names of further configs, and overrides (`key=value`) that apply to all configs.
    """
    names, overrides = split_overrides(config, more)
    return {name: load_with_notes(name, overrides) for name in names}


def load_shape(config: str, overrides: Sequence[str]) -> tuple[Config, str]:
    """Return a config, and a description of the part of the model that it covers (empty: the whole model). Print notes
    about the config to stderr.

    The config of a published model that archlab cannot build covers only a part of the model. The caller must then show
    the description to the user.
    """
    loaded, part, texts = exchange.load_shape(config, overrides)
    for text in texts:
        note(text)
    return loaded, part
