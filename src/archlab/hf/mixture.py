"""Mixtures of experts in published files: which layers have one, and where their experts lie."""

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
    """Whether the layer's MLP is a mixture of experts."""
    return isinstance(layer.mlp, MoE)


def n_experts(layer: LayerConfig) -> int:
    """Experts of such a layer."""
    assert isinstance(layer.mlp, MoE)
    return layer.mlp.experts


def each_expert(theirs: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> list[Row]:
    """One tensor per expert and matrix, as nearly all files have it."""
    names = {"gate": gate, "up": up, "down": down}
    return [
        Row(f"{theirs}.{{h}}.{name}.weight", f"layers.{{i}}.mlp.experts.{ours}", when=is_mixture, each=n_experts)
        for ours, name in names.items()
    ]


GATE_ABOVE_UP = Conversion(lambda theirs, _: theirs.chunk(2, dim=1), lambda ours, _: concatenate(ours, dim=1))
"""[experts, 2 d_ff, d_model]: in each expert the gate's rows, then the others."""


def all_experts(gate_up: str, down: str) -> list[Row]:
    """All experts in two tensors."""
    both = ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up")
    return [
        Row(gate_up, both, GATE_ABOVE_UP, when=is_mixture),
        Row(down, "layers.{i}.mlp.experts.down", COPY, when=is_mixture),
    ]


@dataclass(frozen=True)
class DenseLayers:
    """Which layers have a dense MLP of `intermediate_size` in place of the mixture, whose width is another key's.

    Stands after all other fields of the MLP.
    """

    are_dense: Callable[[ConfigReader, int], Iterable[bool]]
    """Of each layer, from the file."""
    write_keys: Callable[[list[bool]], Raw]
    """The keys that say so."""
    bias_key: str | None = None
    """Of dense MLPs, where mixtures have none."""
    spelled: ClassVar = {"layers.dense.mlp.d_ff": "intermediate_size"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Layer kinds, crossed with those that there are already."""
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
        """Reading back shows whether the keys can say it."""
        layers = layer_configs(model)
        hf |= self.write_keys([not is_mixture(layer) for layer in layers])
        dense = [layer.dense for layer in layers if not is_mixture(layer)]
        if dense:
            hf["intermediate_size"] = dense[0].d_ff
            if self.bias_key:
                hf[self.bias_key] = dense[0].bias


def crossed(layers: Raw | None, flags: list[bool], change: Raw, name: str = "dense", other: str = "sparse") -> Raw:
    """Layer kinds of which some layers of each have a change beside; `layers` None: there were none."""
    if layers is None:
        return {name: change, other: {}, "pattern": [name if flag else other for flag in flags]}
    kinds, pattern = {k: v for k, v in layers.items() if k != "pattern"}, layers["pattern"]
    names = [pattern[i % len(pattern)] for i in range(len(flags))]
    pairs = {(kind, flag): f"{kind}_{name}" if flag else kind for kind, flag in zip(names, flags, strict=True)}
    return {
        **{new: {**kinds[kind], **(change if flag else {})} for (kind, flag), new in pairs.items()},
        "pattern": [pairs[pair] for pair in zip(names, flags, strict=True)],
    }


GROUPS_SPELLED = {
    "mlp.router.groups.n": "n_group", "mlp.router.groups.by": "n_group",
    "mlp.router.groups.kept": "topk_group", "mlp.router.groups": "topk_group",
}  # fmt: skip


@dataclass(frozen=True)
class GroupKeys:
    """`n_group` and `topk_group`; where none can be left out there are none. Stands after `active`."""

    n: int = 1
    kept: int = 1
    by: str = "top2"
    spelled: ClassVar = GROUPS_SPELLED

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Null is the default, too."""
        n, kept = hf.get("n_group", self.n), hf.get("topk_group", self.kept)
        if kept > n:
            raise hf.refuse("topk_group", kept, f"up to n_group, {n}")
        most = ours["mlp.active"] - 1 if self.by == "max" else n - 1  # with more kept, no choice is left out
        ours["mlp.router.groups"] = {"n": n, "kept": kept, "by": self.by} if kept <= min(most, n - 1) else None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """One group of all where there are none."""
        groups = model.mlp.router.groups if isinstance(model.mlp, MoE) else None
        hf["n_group"], hf["topk_group"] = (groups.n, groups.kept) if groups else (1, 1)


@dataclass(frozen=True)
class SharedExperts:
    """A number of shared experts, each as wide as one of the others: one that is as wide as all of them."""

    hf_key: str
    default: int
    bias_key: str | None = None
    """Of their projections, where the others have no biases."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Stands after the width of an expert."""
        number = hf.get(self.hf_key, self.default)
        if number:
            ours["mlp.shared.d_ff"] = number * ours["mlp.d_ff"]
            ours["mlp.shared.bias"] = hf.get(self.bias_key, False) if self.bias_key else False

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Reading back shows whether it is a whole number of them."""
        mlp = resolve(model).mlp
        if isinstance(mlp, MoE):
            hf[self.hf_key] = mlp.shared.d_ff // mlp.d_ff if mlp.shared else 0
            if self.bias_key and mlp.shared:
                hf[self.bias_key] = mlp.shared.bias


def first_dense(default: int, bias_key: str | None = None) -> DenseLayers:
    """`first_k_dense_replace` dense layers, then mixtures."""

    def are_dense(hf: ConfigReader, n_layers: int) -> list[bool]:
        first = hf.get("first_k_dense_replace", default)
        return [i < first for i in range(n_layers)]

    def write_keys(dense: list[bool]) -> Raw:
        return {"first_k_dense_replace": sum(dense)}

    return DenseLayers(are_dense, write_keys, bias_key)
