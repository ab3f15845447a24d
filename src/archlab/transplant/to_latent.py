"""Multi-head attention to latent attention, by low-rank factors (TransMLA, MHA2MLA, X-EcoMLA).

A narrow vector replaces the values, and the part of the keys that is not rotated. Its matrices are the best factors of
those of all heads. The weight of the norm before attention counts, and keys and values are first scaled to the same
norm (TransMLA). The narrow vector is whitened, so that its RMS norm, with weight 1, keeps its scale on average. If its
width is d_model, the norm keeps it exactly, apart from the epsilons.

All heads share the rotated part of the key. A rotation multiplies a pair of dimensions, as a complex number, by a
factor. The pair of each head is therefore replaced by a complex multiple of one shared pair, and the queries absorb the
multiple. The shared pair is the largest component over the heads. `rotary_pairs` chooses the pairs.

With nope_dim = head_dim, the narrow vector also carries what the shared pairs leave over, which is then no longer
rotated. With nope_dim = head_dim - rope_dim, this part is lost.

Shapes: D d_model, H query heads, K key/value heads, C head_dim, V v_dim, N nope_dim, P rope_dim, R kv_rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import Rope
from archlab.config.layers import LayerConfig
from archlab.model.rope_scaling import frequencies
from archlab.transplant.latent_limits import Pairs, check, rotary_pairs
from archlab.transplant.low_rank import factors, root_of_moment, shared_by_heads
from archlab.transplant.transformation import Transformation
from archlab.transplant.weight_errors import largest
from archlab.transplant.weights import Architecture, Errors, LazyTensor, Weights, constant, numbered, sources_of

_NORM = "attention_norms.before"
_REPLACED = ("q.weight", "k.weight", "v.weight")


@dataclass(frozen=True, eq=False)
class _Layer:
    own: LayerConfig
    attention: MultiHead
    wanted: LayerConfig
    latent: Latent
    pairs: Pairs
    tensors: Mapping[str, LazyTensor]
    """Tensors of the layer, by their names in it."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative errors of the new matrices. Empty until they are computed."""

    def read(self, name: str) -> Tensor | None:
        return self.tensors[name].read().double() if name in self.tensors else None

    def heads(self, name: str, n_heads: int) -> Tensor:
        """Return the rows of a projection by head, [heads, width, D], in float64."""
        return self.tensors[f"attention.{name}.weight"].read().double().unflatten(0, (n_heads, -1))


def _latent(weights: Weights, target: Architecture) -> Weights:
    groups: dict[Latent, dict[str, _Layer]] = {}
    for name, own, wanted in weights.pairs(target):
        if isinstance(own.attention, MultiHead) and isinstance(wanted.attention, Latent):
            check(target, name, own, wanted)
            pairs = rotary_pairs(target, name, own, wanted)
            layer = _Layer(own, own.attention, wanted, wanted.attention, pairs, weights.under(name))
            groups.setdefault(wanted.attention, {})[name] = layer
    for latent, layers in groups.items():
        detail = f"{numbered(list(layers))}: {_detail(latent)}"
        weights = weights.changed(
            TO_LATENT.change(detail, errors=partial(_errors, tuple(layers.values()))),
            tensors={f"{name}.attention.{k}": x for name, layer in layers.items() for k, x in _tensors(layer).items()},
            dropped=[f"{name}.attention.{part}" for name in layers for part in _REPLACED],
            layers={name: _config(layer) for name, layer in layers.items()},
        )
    return weights


def _config(layer: _Layer) -> LayerConfig:
    """Return the layer after the change. Fields that it does not change keep their values, so that the plan reports
    a difference in them."""
    unchanged = (name for name in AnyAttention.model_fields if name not in ("kind", "n_heads", "scale"))
    attention = layer.latent.model_copy(
        update={name: getattr(layer.attention, name) for name in (*unchanged, "qkv_bias", "out_bias")}
    )
    return layer.own.model_copy(update={"attention": attention, "position": layer.pairs.position})


def _detail(latent: Latent) -> str:
    of_queries = f", queries of rank {latent.q_rank}" if latent.q_rank else ""
    return f"keys and values of rank {latent.kv_rank}, {latent.rope_dim} shared dimensions{of_queries}"


def _tensors(layer: _Layer) -> dict[str, LazyTensor]:
    latent, d_model, rank = layer.latent, layer.own.d_model, layer.latent.q_rank
    shapes = {
        "q_up.weight": (latent.n_heads * latent.query_width, rank or d_model),
        "kv_down.weight": (latent.kept_width, d_model),
        "kv_up.weight": (latent.n_heads * (latent.nope_dim + (latent.v_dim or 0)), latent.kv_rank),
        **({"q_down.weight": (rank, d_model)} if rank else {}),
    }
    norms = {"kv_norm.weight": latent.kv_rank, "q_norm.weight": rank}
    replaced = [layer.tensors[f"attention.{part}"] for part in _REPLACED]
    changes = tuple(dict.fromkeys((*(name for x in replaced for name in x.changes), TO_LATENT.name)))
    tensors = {
        name: LazyTensor(shape, lambda name=name: _computed(layer)[name], changes, sources_of(replaced))
        for name, shape in shapes.items()
    }
    return tensors | {name: constant(TO_LATENT.name, (width,), 1.0) for name, width in norms.items() if width}


def _errors(layers: Sequence[_Layer]) -> Errors:
    for layer in layers:
        if not layer.errors:
            _computed(layer)
    return largest(layer.errors for layer in layers)


@lru_cache(maxsize=1)  # all tensors of a layer come from one computation, and they are read together
def _computed(layer: _Layer) -> Mapping[str, Tensor]:
    """Return the new tensors of a layer, by their names in the attention module, and note their errors."""
    attention, latent, pairs = layer.attention, layer.latent, layer.pairs
    n_heads, n_kv_heads = attention.n_heads, attention.n_kv_heads or attention.n_heads
    root_DD, group = _root(layer), n_heads // n_kv_heads
    q_HCD, k_KCD, v_KVD = layer.heads("q", n_heads), layer.heads("k", n_kv_heads), layer.heads("v", n_kv_heads)

    q_pairs, k_pairs = (torch.complex(x[:, pairs.first], x[:, pairs.second]) for x in (q_HCD, k_KCD))
    shared = shared_by_heads(k_pairs, root_DD)
    multiples = shared.coefficients_HC[..., None]
    q_rope_HPD = _in_order(q_pairs * multiples.repeat_interleave(group, 0).conj(), layer)
    k_rope_PD = _in_order(shared.shared_CD, layer)

    was_rotated, fixed = list(pairs.rotated), list(pairs.fixed)
    k_parts, q_parts = [k_KCD[:, was_rotated], k_KCD[:, fixed]], [q_HCD[:, was_rotated], q_HCD[:, fixed]]
    if latent.nope_dim == attention.head_dim:
        left_over = k_pairs - multiples * shared.shared_CD
        k_parts = [left_over.real, left_over.imag, *k_parts]
        q_parts = [q_pairs.real, q_pairs.imag, *q_parts]
    q_parts[:-1] = [_amplified(part, layer) for part in q_parts[:-1]]
    q_all = torch.cat((*q_parts, q_rope_HPD), 1).flatten(0, 1) * ((attention.scale or 1) / (latent.scale or 1))
    keys, values = torch.cat(k_parts, 1).flatten(0, 1), v_KVD.flatten(0, 1)

    balance = _norm(values, root_DD) / (_norm(keys, root_DD) or 1)
    kv = factors(torch.cat((keys * balance, values)), root_DD, latent.kv_rank)
    k_up, v_up = kv.up.split((len(keys), len(values)))
    of_heads = [x.unflatten(0, (n_kv_heads, -1)) for x in (k_up / balance, v_up)]
    tensors = {
        "kv_down.weight": torch.cat((kv.down, k_rope_PD)),
        "kv_up.weight": torch.cat(of_heads, 1).repeat_interleave(group, 0).flatten(0, 1),
    }
    kept = {
        "unrotated keys": kv.kept(keys, root_DD),
        "values": kv.kept(values, root_DD),
        "shared rotated keys": shared.kept,
    }
    if latent.q_rank:
        q = factors(q_all, root_DD, latent.q_rank)
        of_queries = {"q_down.weight": q.down, "q_up.weight": q.up}
        kept["queries"] = q.kept(q_all, root_DD)
    else:
        of_queries = {"q_up.weight": q_all}
    layer.errors.update((name, math.sqrt(max(0.0, 1 - fraction))) for name, fraction in kept.items())
    return tensors | of_queries


def _root(layer: _Layer) -> Tensor:
    weight_D, bias_D = layer.read(f"{_NORM}.weight"), layer.read(f"{_NORM}.bias")
    if weight_D is None:
        weight_D = torch.ones(layer.own.d_model, dtype=torch.float64)
    elif getattr(layer.own.norm, "unit_offset", False):
        weight_D = weight_D + 1
    return root_of_moment(weight_D, bias_D)


def _norm(matrix_ND: Tensor, root_DD: Tensor) -> float:
    return (matrix_ND @ root_DD).norm().item()


def _amplified(part: Tensor, layer: _Layer) -> Tensor:
    """Return queries times the squared amplitude of the rotation, which they and their keys lose."""
    position = layer.own.position
    if not isinstance(position, Rope):
        return part
    length, pairs = torch.ones(1, dtype=torch.float64), torch.arange(1, dtype=torch.float64)
    n_rotated = 2 * len(layer.pairs.first) + len(layer.pairs.rotated)
    return part * frequencies(position, n_rotated, length, pairs).amplitude ** 2


def _in_order(pairs: Tensor, layer: _Layer) -> Tensor:
    """Return the dimensions of complex pairs in the order of the new model: [..., P / 2, D] -> [..., P, D]."""
    if getattr(layer.wanted.position, "pairing", "half") == "interleaved":
        return torch.stack((pairs.real, pairs.imag), -2).flatten(-3, -2)
    return torch.cat((pairs.real, pairs.imag), -2)


TO_LATENT = Transformation(
    name="latent attention",
    effect="approximate",
    fields=("model.attention.kind", "model.attention.kv_rank", "model.attention.q_rank"),
    rule="Keys and values become low-rank factors, and all heads share one rotated key. The report states the relative "
    "error of each by rank.",
    paper="Meng 2025, arXiv 2502.07864; Ji 2025, arXiv 2502.14837; Li 2025, arXiv 2503.11132",
    apply=_latent,
)
