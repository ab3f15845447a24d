"""Mixtures of experts in published files: which layers are mixtures, and which tensors hold the experts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader
from archlab.hf.weights import COPY, Conversion, Row, concatenate


def is_mixture(layer: LayerConfig) -> bool:
    return isinstance(layer.mlp, MoE)


def n_experts(layer: LayerConfig) -> int:
    assert isinstance(layer.mlp, MoE)
    return layer.mlp.experts


def each_expert(theirs: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> list[Row]:
    """Return the rows for files with one tensor per expert and matrix, the usual layout."""
    names = {"gate": gate, "up": up, "down": down}
    return [
        Row(f"{theirs}.{{h}}.{name}.weight", f"layers.{{i}}.mlp.experts.{ours}", when=is_mixture, n_stacked=n_experts)
        for ours, name in names.items()
    ]


GATE_ABOVE_UP = Conversion(lambda theirs, _: theirs.chunk(2, dim=1), lambda ours, _: concatenate(ours, dim=1))
"""Conversion that splits a tensor [experts, 2 d_ff, d_model] along its second dimension.

The first rows belong to `gate`, the others to `up`.
"""


def all_experts(gate_up: str, down: str) -> list[Row]:
    """Return the rows for files that store all experts of a layer in two tensors."""
    both = ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up")
    return [
        Row(gate_up, both, GATE_ABOVE_UP, when=is_mixture),
        Row(down, "layers.{i}.mlp.experts.down", COPY, when=is_mixture),
    ]


@dataclass(frozen=True)
class DenseLayers:
    """Layers that have a dense MLP in a model with mixtures. `intermediate_size` is the width of the dense MLPs only.

    All other MLP fields must already have been read.
    """

    are_dense: Callable[[ConfigReader, int], Iterable[bool]]
    """Function that reads for each layer whether its MLP is dense."""
    write_keys: Callable[[list[bool]], Raw]
    """Function that returns the keys that say which layers are dense."""
    bias_key: str | None = None
    """Key for the biases of dense MLPs, in a family whose mixtures have no biases. None if there is no such key."""
    hf_keys: ClassVar = {"layers.dense.mlp.d_ff": "intermediate_size"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer kinds. Split an existing layer kind if some of its layers are dense and others are not."""
        dense = list(self.are_dense(hf, ours["n_layers"]))
        mlp = {"mlp.kind": "gated", "mlp.d_ff": hf.get("intermediate_size", ours.get("mlp.d_ff"))}
        if self.bias_key:
            mlp["mlp.bias"] = hf.get(self.bias_key, False)
        if all(dense):
            for field in [field for field in ours if field.startswith("mlp.") and field != "mlp.activation"]:
                del ours[field]
            ours |= mlp
        elif any(dense):
            ours["layers"] = crossed(ours.get("layers"), dense, mlp)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys. Reading them back shows whether they can express the model."""
        layers = layer_configs(model)
        hf |= self.write_keys([not is_mixture(layer) for layer in layers])
        dense = [layer.dense for layer in layers if not is_mixture(layer)]
        if dense:
            hf["intermediate_size"] = dense[0].d_ff
            if self.bias_key:
                hf[self.bias_key] = dense[0].bias


def crossed(layers: Raw | None, flags: list[bool], change: Raw, name: str = "dense", other: str = "sparse") -> Raw:
    """Return layer kinds in which the flagged layers have an additional change.

    `layers` holds the present layer kinds and their pattern; None means that all layers are alike.
    """
    if layers is None:
        return {name: change, other: {}, "pattern": [name if flag else other for flag in flags]}
    kinds, pattern = {k: v for k, v in layers.items() if k != "pattern"}, layers["pattern"]
    names = [pattern[i % len(pattern)] for i in range(len(flags))]
    pairs = {(kind, flag): f"{kind}_{name}" if flag else kind for kind, flag in zip(names, flags, strict=True)}
    return {
        **{new: {**kinds[kind], **(change if flag else {})} for (kind, flag), new in pairs.items()},
        "pattern": [pairs[pair] for pair in zip(names, flags, strict=True)],
    }


GROUP_HF_KEYS = {
    "mlp.router.groups.n": "n_group", "mlp.router.groups.by": "n_group",
    "mlp.router.groups.kept": "topk_group", "mlp.router.groups": "topk_group",
}  # fmt: skip


@dataclass(frozen=True)
class GroupKeys:
    """The keys `n_group` and `topk_group`, which limit routing to some groups of experts.

    If these groups do not limit the choice of experts, the model gets no groups. `mlp.active` must already have been
    read.
    """

    n: int = 1
    kept: int = 1
    by: str = "top2"
    hf_keys: ClassVar = GROUP_HF_KEYS

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        n, kept = hf.get("n_group", self.n), hf.get("topk_group", self.kept)
        if kept > n:
            raise hf.refuse("topk_group", kept, f"up to n_group, {n}")
        most = ours["mlp.active"] - 1 if self.by == "max" else n - 1  # with more groups, every choice is possible
        ours["mlp.router.groups"] = {"n": n, "kept": kept, "by": self.by} if kept <= min(most, n - 1) else None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the groups. For a model without groups, write one group."""
        groups = model.mlp.router.groups if isinstance(model.mlp, MoE) else None
        hf["n_group"], hf["topk_group"] = (groups.n, groups.kept) if groups else (1, 1)


@dataclass(frozen=True)
class SharedExperts:
    """Key for the number of shared experts.

    Each published shared expert is as wide as a routed expert. archlab builds one shared expert with their total width.
    """

    hf_key: str
    default: int
    bias_key: str | None = None
    """Key for the biases of the shared experts, in a family whose routed experts have no biases.

    None if there is no such key.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the width of the shared expert. The width of a routed expert must already have been read."""
        number = hf.get(self.hf_key, self.default)
        if number:
            ours["mlp.shared.d_ff"] = number * ours["mlp.d_ff"]
            ours["mlp.shared.bias"] = hf.get(self.bias_key, False) if self.bias_key else False

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the number of shared experts.

        Reading it back shows whether the total width is a multiple of an expert's width.
        """
        mlp = resolve(model).mlp
        if isinstance(mlp, MoE):
            hf[self.hf_key] = mlp.shared.d_ff // mlp.d_ff if mlp.shared else 0
            if self.bias_key and mlp.shared:
                hf[self.bias_key] = mlp.shared.bias


def first_dense(default: int, bias_key: str | None = None) -> DenseLayers:

    def are_dense(hf: ConfigReader, n_layers: int) -> list[bool]:
        first = hf.get("first_k_dense_replace", default)
        return [i < first for i in range(n_layers)]

    def write_keys(dense: list[bool]) -> Raw:
        return {"first_k_dense_replace": sum(dense)}

    return DenseLayers(are_dense, write_keys, bias_key)
