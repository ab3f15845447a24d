"""Position encodings added to the token embedding (sinusoidal, learned) or to the attention scores (all others).

RoPE, which rotates queries and keys instead, is in rotary.py.

Shapes: B batch, T tokens, D d_model, H heads, Q queries, S keys, C head_dim.

A position bias is a module. Its inputs are the distances (query position - key position, [B or 1, Q, S]) and the
queries. Its output is [B or 1, H, Q, S].
"""

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from archlab.config.components import position as schema
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import RoleName, Site
from archlab.config.core.registry import implements, make
from archlab.config.model_schema import ModelConfig
from archlab.model.arithmetic import at_least_float32, wide, without_autocast
from archlab.model.contract import Result, check_forward
from archlab.model.projection import Projection
from archlab.model.roles import check_parameters
from archlab.model.state import is_step


@implements(schema.Sinusoidal)
class SinusoidalPositions(nn.Module):
    """Sinusoidal position vectors: sin and cos of t / theta^(2i/d), interleaved or in two halves (Vaswani 2017)."""

    def __init__(self, config: schema.Sinusoidal, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.config, self.d_model = config, d_model

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Return position vectors in `dtype`: [B, T] -> [B, T, D]. Angles are computed in at least float32."""
        exponent = torch.arange(0, self.d_model, 2, dtype=wide(dtype), device=positions_BT.device) / self.d_model
        shifted = (positions_BT[..., None] + self.config.offset).to(wide(dtype))
        angles = shifted * self.config.theta**-exponent
        waves = (angles.sin(), angles.cos())
        joined = torch.stack(waves, -1).flatten(-2) if self.config.layout == "interleaved" else torch.cat(waves, -1)
        return joined[..., : self.d_model].to(dtype)


@implements(schema.Learned)
class LearnedPositions(nn.Module):
    """Learned position vectors: one per position."""

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: schema.Learned, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.offset = config.offset
        self.weight = nn.Parameter(torch.empty(config.offset + max_seq_len, d_model))

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Return position vectors in `dtype`: [B, T] -> [B, T, D].

        `Decoder` checks that each position has a learned vector.
        """
        return self.weight[positions_BT.clamp(min=0) + self.offset].to(dtype)


@implements(schema.Alibi)
class AlibiBias(nn.Module):
    """ALiBi: -slope(head) * |distance| (Press 2021). In Falcon's form, the distance is minus the key position."""

    def __init__(self, config: schema.Alibi, heads: AnyAttention) -> None:
        super().__init__()
        self.form, self.scale = config.form, heads.scale
        self.slopes = slopes(heads.n_heads, config.max_bias)

    def forward(self, distance_BQS: Tensor, q_BHQC: Tensor) -> Tensor:
        """Return the position bias, [B or 1, H, Q, S]."""
        slopes_H = torch.tensor(self.slopes, device=distance_BQS.device, dtype=wide(q_BHQC.dtype))
        if self.form == "falcon":
            rounded_BHQS = slopes_H.bfloat16()[:, None, None] * -distance_BQS[:, None].bfloat16()
            return rounded_BHQS.to(slopes_H.dtype) * self.scale
        return -slopes_H[:, None, None] * distance_BQS[:, None].abs()


def slopes(n_heads: int, max_bias: float) -> list[float]:
    """Return the slope of each head: 2^(-max_bias i / h) for i = 1 ... h.

    If h is not a power of two, the first slopes are those for the next lower power of two. The other slopes are those
    for the next higher power of two with i = 1, 3, 5, ...
    """
    power = 2 ** math.floor(math.log2(n_heads))
    series = [2 ** (-max_bias * i / power) for i in range(1, power + 1)]
    between = [2 ** (-max_bias * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return (series + between)[:n_heads]


@implements(schema.T5)
class T5Bias(nn.Module):
    """T5 bias: one learned parameter per head and bucket of distances (Raffel 2020).

    If queries see later keys, the first half of the buckets is for the keys up to the query, and the second half is for
    the keys after it.
    """

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: schema.T5, heads: AnyAttention) -> None:
        super().__init__()
        self.config, self.sees_later_keys = config, heads.sees_later_keys
        self.weight = nn.Parameter(torch.empty(config.buckets, heads.n_heads))

    def forward(self, distance_BQS: Tensor, q_BHQC: Tensor | None = None) -> Tensor:
        """Return the position bias, [B or 1, H, Q, S]. The queries are not used."""
        n, longest = self.config.buckets, self.config.max_distance
        if self.sees_later_keys:
            buckets = bucket(distance_BQS.abs(), n // 2, longest) + n // 2 * (distance_BQS < 0)
        else:
            buckets = bucket(distance_BQS.clamp(min=0), n, longest)
        return at_least_float32(self.weight)[buckets].movedim(-1, 1)


def bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance >= 0.

    The first half of the buckets holds one distance each. The second half divides the distances up to `max_distance` on
    a logarithmic scale.
    """
    exact = buckets // 2
    share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, far)


@implements(schema.Shaw)
class ShawBias(nn.Module):
    """Shaw bias: scale * q.a(distance) (Shaw 2018).

    Distances are clipped to a maximum. All heads share the learned vectors a.
    """

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: schema.Shaw, heads: AnyAttention) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_distance + 1, heads.query_width))
        self.scale = heads.scale

    def forward(self, distance_BQS: Tensor, q_BHQC: Tensor) -> Tensor:
        """Return the position bias, [B, H, Q, S]."""
        with without_autocast(q_BHQC):
            per_distance_BHQN = at_least_float32(q_BHQC) @ self.weight.to(wide(q_BHQC.dtype)).T * self.scale
        index_BHQS = distance_BQS.clamp(0, len(self.weight) - 1)[:, None].expand(*q_BHQC.shape[:2], -1, -1)
        return per_distance_BHQN.gather(-1, index_BHQS)


@implements(schema.TransformerXL)
class TransformerXLBias(nn.Module):
    """Transformer-XL bias: scale * (q + v).(W r(distance)), with sinusoids r (Dai 2019).

    Every head has its own projection W, bias v, and bias u, which `with_content_bias` adds to the queries.

    A decoding step has few queries and many distances. It computes (W^T (q + v)).r, so that it does not project the
    sinusoids of all distances.
    """

    def __init__(self, config: schema.TransformerXL, heads: AnyAttention, d_model: int) -> None:
        super().__init__()
        self.scale, self.n_heads = heads.scale, heads.n_heads
        self.sinusoids = SinusoidalPositions(schema.Sinusoidal(layout="halves"), d_model, 0)
        self.projection = Projection(d_model, heads.n_heads * heads.query_width, bias=False, role="input")
        self.content_bias = nn.Parameter(torch.empty(heads.n_heads, heads.query_width))
        self.distance_bias = nn.Parameter(torch.empty(heads.n_heads, heads.query_width))
        self.constants = {"content_bias": 0.0, "distance_bias": 0.0}

    def forward(self, distance_BQS: Tensor, q_BHQC: Tensor) -> Tensor:
        """Return the position bias, [B, H, Q, S]."""
        n_distances = distance_BQS.shape[-1]
        r_ND = self.sinusoids(torch.arange(n_distances, device=distance_BQS.device), q_BHQC.dtype)
        wide_BHQC = at_least_float32(q_BHQC) + at_least_float32(self.distance_bias)[:, None]
        if is_step(q_BHQC.shape[2]):
            projection_HCD = self.projection.weight.unflatten(0, (self.n_heads, -1))
            q_BHQD = torch.einsum("bhqc,hcd->bhqd", wide_BHQC.to(r_ND.dtype), projection_HCD.to(r_ND.dtype))
            with without_autocast(q_BHQC):
                per_distance_BHQN = at_least_float32(q_BHQD) @ at_least_float32(r_ND).T
        else:
            r_NHC = self.projection(r_ND).unflatten(-1, (self.n_heads, -1))
            with without_autocast(q_BHQC):
                per_distance_BHQN = torch.einsum("bhqc,nhc->bhqn", wide_BHQC, at_least_float32(r_NHC))
        index_BHQS = distance_BQS.clamp(0, n_distances - 1)[:, None].expand(*q_BHQC.shape[:2], -1, -1)
        return (per_distance_BHQN * self.scale).gather(-1, index_BHQS)


def with_content_bias(q_BHQC: Tensor, position_bias: nn.Module | None) -> Tensor:
    """Return the queries to multiply by the keys. With Transformer-XL's positions, these are the queries plus u."""
    if not isinstance(position_bias, TransformerXLBias):
        return q_BHQC
    return (at_least_float32(q_BHQC) + at_least_float32(position_bias.content_bias)[:, None]).to(q_BHQC.dtype)


def make_positions(model: ModelConfig) -> nn.Module | None:
    """Return the module whose output is added to the token embedding; None if the config's positions act elsewhere."""
    if model.position.acts_on != "embedding":
        return None
    n_parameters = model.position.of_all_layers(model.added_width, model.max_seq_len, model.attention.score_heads)
    return _made(model.position, n_parameters, model.added_width, model.max_seq_len)


def make_shared_bias(model: ModelConfig) -> nn.Module | None:
    """Return the position bias module that all layers share; None if there is no shared bias."""
    heads = model.attention
    if not model.position.is_shared or not isinstance(heads, AnyAttention):
        return None
    return _made(model.position, model.position.of_all_layers(model.d_model, model.max_seq_len, heads.n_heads), heads)


def make_position_bias(site: Site, heads: AnyAttention) -> nn.Module | None:
    """Return a layer's own position bias module; None if the layer has no bias or shares the model's bias."""
    position, H, C = site.position, heads.n_heads, heads.query_width
    if position.acts_on != "scores" or position.is_shared:
        return None
    n_parameters = position.of_a_layer(H, C) + position.projection_of_a_layer(site.d_model, H, C)
    if isinstance(position, schema.TransformerXL):
        return _made(position, n_parameters, heads, site.d_model)
    return _made(position, n_parameters, heads)


def _made(position: schema.Position, n_parameters: int, *arguments: Any) -> nn.Module:
    return make(position, *arguments, check=partial(_check_position, n_parameters))


def _check_position(
    n_parameters: int, kind: type[schema.Position], module: nn.Module, position: schema.Position, *arguments: Any
) -> nn.Module:
    check_parameters(kind, module, n_parameters)
    if position.acts_on == "embedding":
        check_forward(kind, module, "positions, dtype", partial(_added, arguments[0]))
    else:
        check_forward(kind, module, "distance" if position.is_shared else "distance, queries", _bias)
    return module


def _added(d_model: int, positions_BT: Tensor, dtype: torch.dtype) -> Result:
    return Result((*positions_BT.shape, d_model), dtype, broadcasts=True)


def _bias(distance_BQS: Tensor, q_BHQC: Tensor | None = None) -> Result | None:
    if q_BHQC is None:
        return None
    return Result((*q_BHQC.shape[:3], distance_BQS.shape[-1]), None, broadcasts=True)
