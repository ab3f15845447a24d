"""Keys of published files that repeat what other keys say, and that the published code does not read."""

from collections.abc import Callable
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader


@dataclass(frozen=True)
class RepeatedKeys:
    """Check that keys which the published code does not read agree with the fields that it reads.

    The fields that `expected` needs must already have been read.
    """

    expected: Callable[[ConfigReader, list[Raw]], Raw]
    """Function that returns the right value of each key. Its second argument contains the fields of each layer."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if a key has another value."""
        names = ours["layers"]["pattern"] if "layers" in ours else ["all"] * ours["n_layers"]
        layers = [{**ours, **ours.get("layers", {}).get(name, {})} for name in names]
        for key, value in self.expected(hf, layers).items():
            if (found := hf.get(key)) not in (None, value):
                raise hf.refuse(key, found, f"{value!r}, because the published code does not read this key")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key."""
