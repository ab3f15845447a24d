"""Which layers slide, which see everything, which have a recurrent mixer: `layer_types`, or older keys that imply
it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from archlab.config.components.component import Absent
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader, Field, spelled

SLIDING, FULL = "sliding_attention", "full_attention"


def every(n: int, fixed: bool = False) -> Callable[[ConfigReader, int], list[str]]:
    """Every n-th layer is full, the others slide; older files have a key that says n, unless the code fixes it."""

    def types(hf: ConfigReader, n_layers: int) -> list[str]:
        period = hf.get("sliding_window_pattern", n)
        if fixed and period != n:
            raise hf.refuse("sliding_window_pattern", period, f"{n}, for the published code ignores the key")
        return [FULL if (i + 1) % period == 0 else SLIDING for i in range(n_layers)]

    return types


def all_full(_hf: ConfigReader, n_layers: int) -> list[str]:
    """No layer slides."""
    return [FULL] * n_layers


@dataclass(frozen=True)
class LayerTypes:
    """`layer_types` and `sliding_window` <-> our windows, with what else differs between the two kinds."""

    implied: Callable[[ConfigReader, int], list[str]] = all_full
    """The types where the file does not list them."""
    window: int | None = 4096
    """Where the file does not say."""
    sliding: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of sliding layers beside the window."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of full layers."""
    unused: int | None = None
    """Written as the window where no layer slides: some published code wants a number there."""
    spelled: ClassVar = {"attention.window": "sliding_window"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """One kind of layer needs no pattern."""
        implied = self.implied(hf, ours["n_layers"])
        types = _types(hf, implied, {SLIDING, FULL}, ours["n_layers"])
        window = hf.or_null("sliding_window", self.window)
        if SLIDING in types and not window:
            raise hf.refuse("sliding_window", window, f"a width, for layer_types has {SLIDING}")
        kinds = {SLIDING: {"attention.window": window, **self.sliding}, FULL: dict(self.full)}
        if len(set(types)) == 1:
            ours |= kinds[types[0]]
        else:
            ours["layers"] = {"sliding": kinds[SLIDING], "full": kinds[FULL]} | {
                "pattern": ["sliding" if kind == SLIDING else "full" for kind in types]
            }

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The list, written out."""
        windows = [layer.multi_head.window for layer in layer_configs(model)]
        hf["layer_types"] = [FULL if window is None else SLIDING for window in windows]
        hf["sliding_window"] = next((window for window in windows if window is not None), self.unused)


@dataclass(frozen=True)
class MixerLayers:
    """`layer_types` <-> layers with attention, and layers with a recurrent mixer in its place."""

    theirs: str
    """The type of a layer with a mixer."""
    mixer: Sequence[Field]
    """Keys of the mixer, all of which say fields of `mixer`."""
    implied: Callable[[ConfigReader, int], list[str]] = all_full
    """The types where the file does not list them."""

    @property
    def spelled(self) -> Mapping[str, str]:
        """The mixer's."""
        return spelled(self.mixer)

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        """The type of each layer."""
        return _types(hf, self.implied(hf, n_layers), {self.theirs, FULL}, n_layers)

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Layers of one kind need no pattern. Stands after all fields of attention."""
        types = self.types(hf, ours["n_layers"])
        recurrent = {"attention.kind": "none"}
        for part in self.mixer:
            part.read(hf, recurrent)
        if FULL not in types:
            for field in [field for field in ours if field.startswith(("attention.", "position"))]:
                del ours[field]
            ours |= {**recurrent, "position.kind": "none"}
        elif self.theirs in types:
            pattern = ["full" if kind == FULL else "recurrent" for kind in types]
            ours["layers"] = {"recurrent": recurrent, "full": {}, "pattern": pattern}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """The list, written out, and the keys of the first mixer."""
        mixers = [layer.mixer for layer in layer_configs(model)]
        hf["layer_types"] = [FULL if isinstance(mixer, Absent) else self.theirs for mixer in mixers]
        first = next((mixer for mixer in mixers if not isinstance(mixer, Absent)), mixers[0])
        for part in self.mixer:
            part.write(model.model_copy(update={"mixer": first}), hf)
        if FULL not in hf["layer_types"]:  # which the published code wants all the same
            hf |= {"num_attention_heads": 1, "num_key_value_heads": 1}


def _types(hf: ConfigReader, implied: list[str], known: set[str], n_layers: int) -> list[str]:
    """One of the known types for each layer."""
    types = hf.get("layer_types", implied)
    if unknown := sorted(set(types) - known):
        raise hf.refuse("layer_types", unknown[0], ", ".join(sorted(known, reverse=True)))
    if len(types) != n_layers:
        raise hf.refuse("layer_types", f"{len(types)} types", f"one for each of the {n_layers} layers")
    return types
