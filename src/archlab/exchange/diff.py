"""Differences between two configs, which may be given by name."""

from collections.abc import Mapping
from typing import Any

from archlab.config.identity import differences
from archlab.displayed import Displayed
from archlab.exchange.configs import ConfigSource, config_of, name_of


class Differences(Displayed, dict[str, tuple[Any, Any]]):
    """Values of two configs by field."""

    def __init__(self, values: Mapping[str, tuple[Any, Any]], names: tuple[str, str]) -> None:
        super().__init__(values)
        self.names = names
        """Names of the configs, for the columns of a table."""


def diff(a: ConfigSource, b: ConfigSource, *, model_only: bool = False) -> Differences:
    """Return the resolved fields in which two configs differ, section by section.

    - `a`, `b`: configs, or their names, as for `archlab.load_config`.
    - `model_only`: whether to leave out all fields except those of the model.

    The result maps a dotted field to its values in `a` and in `b`. The value is None if a config does not have the
    field.

    >>> dict(archlab.diff("llama-3-8b", archlab.load_config("llama-3-8b", "model.n_layers=16")))
    {'model.n_layers': (32, 16)}
    """
    differing = differences(config_of(a), config_of(b), model_only=model_only)
    return Differences(differing, (name_of(a, "a"), name_of(b, "b")))
