"""Translation of mixtures of experts: which layers have one, and which published tensors contain the experts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader
from archlab.hf.layer_types import layer_types, with_dense_layers
from archlab.hf.weight_map import COPY, Conversion, Row, concatenate, linear, then

if TYPE_CHECKING:
    from torch import Tensor


def is_mixture(layer: LayerConfig) -> bool:
    return isinstance(layer.mlp, MoE)


def n_experts(layer: LayerConfig) -> int:
    assert isinstance(layer.mlp, MoE)
    return layer.mlp.experts


def each_expert(theirs: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> list[Row]:
    """Return the rows for the usual layout of files: each matrix of each expert is a tensor of its own."""
    names = {"gate": gate, "up": up, "down": down}
    return [
        Row(f"{theirs}.{{h}}.{name}.weight", f"layers.{{i}}.mlp.experts.{ours}", when=is_mixture, n_stacked=n_experts)
        for ours, name in names.items()
    ]


def shared_expert(theirs: str) -> list[Row]:
    """Return the rows for the shared expert, through which every token passes."""
    parts = ("gate", "up", "down")
    return [row for part in parts for row in linear(f"{theirs}.{part}_proj", f"layers.{{i}}.mlp.shared.{part}")]


GATE_ABOVE_UP = Conversion(lambda theirs, _: theirs.chunk(2, dim=1), lambda ours, _: concatenate(ours, dim=1))
"""Conversion between a published tensor [experts, 2 * d_ff, d_model] and two parameters [experts, d_ff, d_model].

The first d_ff rows of each expert belong to `gate`, the others to `up`.
"""


GATE_BESIDE_UP = Conversion(
    lambda theirs, _: [half.mT for half in theirs.chunk(2, dim=-1)],
    lambda ours, _: concatenate((x.mT for x in ours), dim=-1),
)
"""Conversion between a published tensor [experts, d_model, 2 * d_ff] and two parameters [experts, d_ff, d_model].

The first d_ff columns of each expert belong to the gate projection, the others to the up projection.
"""


def all_experts(gate_up: str, down: str) -> list[Row]:
    """Return the rows for files with two tensors per layer: one contains `gate` and `up` of all experts, the other
    contains `down`."""
    both = ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up")
    return [
        Row(gate_up, both, GATE_ABOVE_UP, when=is_mixture),
        Row(down, "layers.{i}.mlp.experts.down", COPY, when=is_mixture),
    ]


def all_experts_either_way(gate_up: str, down: str) -> list[Row]:
    """Return the rows of `all_experts` for files that have each matrix as [out, in] or as [in, out].

    A matrix that fits both is [out, in], as in transformers.
    """
    shapes = (lambda mlp, d_model: (2 * mlp.d_ff, d_model), lambda mlp, d_model: (d_model, mlp.d_ff))
    return [
        replace(row, conversion=then(_upright(shape), row.conversion), either_way=True)
        for row, shape in zip(all_experts(gate_up, down), shapes, strict=True)
    ]


def _upright(shape: Callable[[MoE, int], tuple[int, int]]) -> Conversion:
    """Return the conversion that transposes the matrices of the experts if they do not have this shape. `shape` is a
    function of the mixture and of the width of the stream."""

    def split(theirs: "Tensor", layer: LayerConfig | None) -> "list[Tensor]":
        assert layer is not None
        assert isinstance(layer.mlp, MoE)
        return [theirs if theirs.shape[1:] == shape(layer.mlp, layer.d_model) else theirs.mT]

    return Conversion(split, lambda ours, _: ours[0])


@dataclass(frozen=True)
class DenseLayers:
    """Keys for the layers that have a dense MLP, in a model whose other layers have a mixture of experts.

    The fields of the mixtures must already have been read.
    """

    are_dense: Callable[[ConfigReader, int], Iterable[bool]]
    """Function that reads, for each layer, whether its MLP is dense. Its second argument is the number of layers."""
    write_keys: Callable[[list[bool]], Raw]
    """Function that returns the config.json keys for a list that says, for each layer, whether its MLP is dense."""
    bias_key: str | None = None
    """Key that turns on biases in dense MLPs. The mixtures of the family have no biases. None if there is no such
    key."""
    width_key: str = "intermediate_size"
    """Key for the width of the dense MLPs."""
    more: Mapping[str, object] = field(default_factory=dict)
    """Other archlab fields of the layers with a dense MLP."""
    width: int | None = None
    """Width of the dense MLPs if the file lacks the key. None means the width of an expert."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {"layers.dense.mlp.d_ff": self.width_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer kinds. If only some layers of an existing layer kind are dense, it becomes two layer kinds."""
        dense = list(self.are_dense(hf, ours["n_layers"]))
        mlp = {"mlp.kind": "gated", "mlp.d_ff": hf.get(self.width_key, self.width or ours.get("mlp.d_ff")), **self.more}
        if self.bias_key:
            mlp["mlp.bias"] = hf.get(self.bias_key, False)
        if all(dense):
            for field in [field for field in ours if field.startswith("mlp.") and field != "mlp.activation"]:
                del ours[field]
            ours |= mlp
        elif any(dense):
            ours["layers"] = with_dense_layers(ours.get("layers"), dense, mlp)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys. `Family.hf_config` reads them back and refuses a model that they cannot express."""
        layers = layer_configs(model)
        hf |= self.write_keys([not is_mixture(layer) for layer in layers])
        dense = [layer.dense for layer in layers if not is_mixture(layer)]
        if dense:
            hf[self.width_key] = dense[0].d_ff
            if self.bias_key:
                hf[self.bias_key] = dense[0].bias


GROUP_HF_KEYS = {
    "mlp.router.groups.n": "n_group", "mlp.router.groups.by": "n_group",
    "mlp.router.groups.kept": "topk_group", "mlp.router.groups": "topk_group",
}  # fmt: skip


@dataclass(frozen=True)
class GroupKeys:
    """The keys `n_group` and `topk_group`. The experts form `n_group` groups, and each token uses experts of at most
    `topk_group` groups.

    If every choice of experts is possible nevertheless, the archlab config gets no groups. `mlp.active` must already
    have been read.
    """

    n: int = 1
    kept: int = 1
    by: str = "top2"
    n_key: str = "n_group"
    """Key for the number of groups."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {field: self.n_key if key == "n_group" else key for field, key in GROUP_HF_KEYS.items()}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        n, kept = hf.get(self.n_key, self.n), hf.get("topk_group", self.kept)
        if kept > n:
            raise hf.refuse("topk_group", kept, f"up to {self.n_key}, {n}")
        most = ours["mlp.active"] - 1 if self.by == "max" else n - 1  # with more groups, every choice is possible
        ours["mlp.router.groups"] = {"n": n, "kept": kept, "by": self.by} if kept <= min(most, n - 1) else None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the groups. A model without groups is written with 1 group."""
        groups = model.mlp.router.groups if isinstance(model.mlp, MoE) else None
        hf[self.n_key], hf["topk_group"] = (groups.n, groups.kept) if groups else (1, 1)


@dataclass(frozen=True)
class SharedExperts:
    """Key for the number of shared experts.

    In published models, each shared expert is as wide as a routed expert. archlab builds a single shared expert, which
    is as wide as all of them together.
    """

    hf_key: str
    default: int
    bias_key: str | None = None
    """Key that turns on biases in shared experts. The routed experts of the family have no biases.

    None if there is no such key.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the width of the shared expert. The key for the width of a routed expert must already have been read."""
        number = hf.get(self.hf_key, self.default)
        if number:
            ours["mlp.shared.d_ff"] = number * ours["mlp.d_ff"]
            ours["mlp.shared.bias"] = hf.get(self.bias_key, False) if self.bias_key else False

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the number of shared experts.

        `Family.hf_config` reads it back and refuses a shared expert whose width is not a multiple of a routed expert's
        width.
        """
        mlp = resolve(model).mlp
        if isinstance(mlp, MoE):
            hf[self.hf_key] = mlp.shared.d_ff // mlp.d_ff if mlp.shared else 0
            if self.bias_key and mlp.shared:
                hf[self.bias_key] = mlp.shared.bias


def first_dense(
    default: int, bias_key: str | None = None, key: str = "first_k_dense_replace", width: int | None = None
) -> DenseLayers:
    """Return the translation of a key for the number of dense layers, which are the first of the model. `width` is
    their width if the file lacks it."""

    def are_dense(hf: ConfigReader, n_layers: int) -> list[bool]:
        first = hf.get(key, default)
        return [i < first for i in range(n_layers)]

    def write_keys(dense: list[bool]) -> Raw:
        return {key: sum(dense)}

    return DenseLayers(are_dense, write_keys, bias_key, width=width)


def mlp_layer_types(
    *,
    n_dense: int = 1,
    reads_first: bool = False,
    bias_key: str | None = None,
    width_key: str = "intermediate_size",
) -> DenseLayers:
    """Return the translation of `mlp_layer_types`, a list that says for each layer whether its MLP is dense or sparse.

    If the list is absent, the first `n_dense` layers are dense. `reads_first` says that `first_k_dense_replace` is then
    the number of dense layers. Otherwise the published code does not read this key, and a value other than `n_dense` is
    an error.
    """

    def are_dense(hf: ConfigReader, n_layers: int) -> list[bool]:
        first = hf.get("first_k_dense_replace", n_dense)
        if first != n_dense and not reads_first and hf.get("mlp_layer_types", kind=list) is None:
            raise hf.refuse(
                "first_k_dense_replace", first, f"{n_dense}, or another value together with mlp_layer_types"
            )
        implied = ["dense" if i < first else "sparse" for i in range(n_layers)]
        types = layer_types(hf, implied, {"dense", "sparse"}, n_layers, key="mlp_layer_types")
        return [kind == "dense" for kind in types]

    return DenseLayers(are_dense, write_mlp_types, bias_key, width_key)


def write_mlp_types(dense: list[bool]) -> Raw:
    return {"mlp_layer_types": ["dense" if is_dense else "sparse" for is_dense in dense]}
