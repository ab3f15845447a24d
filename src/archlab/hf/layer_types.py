"""Translation of layer types: sliding-window attention, full attention, or a recurrent mixer.

A config.json lists the types in `layer_types`, or they follow from older keys. A "sliding" layer has attention with a
sliding window, a "full" layer has attention without a window.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from archlab.config.components.component import Absent
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader, Field, all_hf_keys

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
OLDER_NAMES = {"mamba": LINEAR, "attention": FULL}
"""Names of layer types in older files, and their names today."""


def full_every(n: int, fixed: bool = False) -> Callable[[ConfigReader, int], list[str]]:
    """Return a function for `LayerTypes.implied`: every n-th layer is full, and the others are sliding.

    Older files contain n in `sliding_window_pattern`. `fixed` says that the published code ignores this key; a value
    other than n is then an error.
    """

    def types(hf: ConfigReader, n_layers: int) -> list[str]:
        period = hf.get("sliding_window_pattern", n)
        if fixed and period != n:
            raise hf.refuse("sliding_window_pattern", period, f"{n}, because the published code ignores the key")
        return [FULL if (i + 1) % period == 0 else SLIDING for i in range(n_layers)]

    return types


def all_full(_hf: ConfigReader, n_layers: int) -> list[str]:
    return [FULL] * n_layers


@dataclass(frozen=True)
class LayerTypes:
    """Translation of `layer_types` and `sliding_window`, for models with sliding and full layers."""

    implied: Callable[[ConfigReader, int], list[str]] = all_full
    """Function that returns the type of each layer for a config.json without `layer_types`."""
    window: int | None = 4096
    """Default of `sliding_window`."""
    sliding: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that apply only to sliding layers, in addition to the window."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that apply only to full layers."""
    unused: int | None = None
    """Value to write for `sliding_window` if no layer is sliding. Some published code requires a number."""
    hf_keys: ClassVar = {"attention.window": "sliding_window"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the window. If the model has both types of layers, define two layer kinds and their pattern."""
        implied = self.implied(hf, ours["n_layers"])
        types = layer_types(hf, implied, {SLIDING, FULL}, ours["n_layers"])
        window = hf.or_null("sliding_window", self.window)
        if SLIDING in types and not window:
            raise hf.refuse("sliding_window", window, f"a number, because layer_types has {SLIDING}")
        kinds = {SLIDING: {"attention.window": window, **self.sliding}, FULL: dict(self.full)}
        if len(set(types)) == 1:
            ours |= kinds[types[0]]
        else:
            ours["layers"] = {"sliding": kinds[SLIDING], "full": kinds[FULL]} | {
                "pattern": ["sliding" if kind == SLIDING else "full" for kind in types]
            }

    def write(self, model: ModelConfig, hf: Raw) -> None:
        windows = [layer.multi_head.window for layer in layer_configs(model)]
        hf["layer_types"] = [FULL if window is None else SLIDING for window in windows]
        hf["sliding_window"] = next((window for window in windows if window is not None), self.unused)


@dataclass(frozen=True)
class MixerLayers:
    """Translation of `layer_types`, for models in which some or all layers have a recurrent mixer instead of
    attention."""

    mixer_type: str
    """Entry of `layer_types` for a layer with the mixer."""
    mixer: Sequence[Field]
    """Steps that translate the keys of the recurrent mixer."""
    implied: Callable[[ConfigReader, int], list[str]] = all_full
    """Function that returns the type of each layer for a config.json without `layer_types`."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return all_hf_keys(self.mixer)

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        return layer_types(hf, self.implied(hf, n_layers), {self.mixer_type, FULL}, n_layers)

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the mixer. If some layers have attention, define two layer kinds and their pattern.

        All attention fields must already have been read.
        """
        types = self.types(hf, ours["n_layers"])
        recurrent = {"attention.kind": "none"}
        for part in self.mixer:
            part.read(hf, recurrent)
        if FULL not in types:
            for field in [field for field in ours if field.startswith(("attention.", "position"))]:
                del ours[field]
            ours |= {**recurrent, "position.kind": "none"}
        elif self.mixer_type in types:
            pattern = ["full" if kind == FULL else "recurrent" for kind in types]
            ours["layers"] = {"recurrent": recurrent, "full": {}, "pattern": pattern}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the type of each layer, and the keys of the first mixer in the model."""
        mixers = [layer.mixer for layer in layer_configs(model)]
        hf["layer_types"] = [FULL if isinstance(mixer, Absent) else self.mixer_type for mixer in mixers]
        first = next((mixer for mixer in mixers if not isinstance(mixer, Absent)), mixers[0])
        for part in self.mixer:
            part.write(model.model_copy(update={"mixer": first}), hf)
        if FULL not in hf["layer_types"]:  # the published code requires these keys even without attention
            hf |= {"num_attention_heads": 1, "num_key_value_heads": 1}


def with_each_layer(layers: Raw | None, field: str, values: Sequence[Any]) -> Raw:
    """Return layer kinds in which `field` of each layer has its entry in `values`.

    `layers` contains the previous layer kinds and their pattern. None means that all layers were alike. A kind whose
    layers get different values becomes several kinds, which are numbered.
    """
    changes = [{field: value} for value in values]
    return split_kinds(
        layers or {"all": {}, "pattern": ["all"]},
        changes,
        lambda kind, change, others: kind if len(others) == 1 else f"{kind}_{others.index(change)}",
    )


def with_dense_layers(layers: Raw | None, dense: Sequence[bool], change: Raw) -> Raw:
    """Return layer kinds in which `change` applies to each layer whose entry in `dense` is true.

    `layers` contains the previous layer kinds and their pattern. None means that all layers were alike.
    """
    if layers is None:
        return {"dense": change, "sparse": {}, "pattern": ["dense" if is_dense else "sparse" for is_dense in dense]}
    changes = [change if is_dense else {} for is_dense in dense]
    return split_kinds(layers, changes, lambda kind, own, _: f"{kind}_dense" if own else kind)


def split_kinds(layers: Raw, changes: Sequence[Raw], named: Callable[[str, Raw, list[Raw]], str]) -> Raw:
    """Return layer kinds in which each layer has its entry in `changes`.

    `layers` contains the previous layer kinds and their pattern. `named` returns the name of a new kind. Its arguments
    are the name of the previous kind, the change, and the different changes to layers of the previous kind.
    """
    before = [layers["pattern"][i % len(layers["pattern"])] for i in range(len(changes))]
    different: dict[str, list[Raw]] = {kind: [] for kind in before}
    for kind, change in zip(before, changes, strict=True):
        if change not in different[kind]:
            different[kind].append(change)
    kinds, pattern = dict[str, Raw](), list[str]()
    for kind, change in zip(before, changes, strict=True):
        pattern.append(named(kind, change, different[kind]))
        kinds[pattern[-1]] = {**layers[kind], **change}
    return {**kinds, "pattern": pattern}


def layer_types(
    hf: ConfigReader, implied: list[str], known: set[str], n_layers: int, key: str = "layer_types"
) -> list[str]:
    """Return the type of each layer from the list in the key, or `implied` if the key is absent. Raise UserError if a
    type is not in `known`."""
    listed: list[str] = hf.get(key, implied)
    types = [OLDER_NAMES.get(kind, kind) for kind in listed]
    if unknown := sorted(set(types) - known):
        raise hf.refuse(key, unknown[0], ", ".join(sorted(known, reverse=True)))
    if len(types) != n_layers:
        raise hf.refuse(key, f"{len(types)} types", f"one for each of the {n_layers} layers")
    return types
