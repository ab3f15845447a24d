"""Limits of latent attention that is made from multi-head attention: which features have a counterpart, and which
dimensions of a head all heads can share."""

import math
from typing import NamedTuple

from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.config.components.position import Rope
from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.transplant.fields import field_of
from archlab.transplant.weights import Architecture

_WITHOUT_COUNTERPART = ("qkv_bias", "clip_qkv", "temperature", "sinks", "sub_norm", "gate")
_EQUAL = ("n_heads", "v_dim")


class Pairs(NamedTuple):
    """Dimensions of each trained head, by the part of latent attention that receives them."""

    first: list[int]
    """First dimensions of the shared pairs, which all heads share."""
    second: list[int]
    rotated: list[int]
    """Dimensions that are rotated in the trained model and no longer afterwards."""
    fixed: list[int]
    """Dimensions that are never rotated."""


def check(target: Architecture, name: str, own: LayerConfig, wanted: LayerConfig) -> None:
    """Raise UserError, with the field, if latent attention has no place for a feature of the trained layer."""
    before, after = own.attention, wanted.attention
    assert isinstance(before, MultiHead)
    assert isinstance(after, Latent)
    for field in _EQUAL:
        if getattr(before, field) != getattr(after, field):
            found = f"{getattr(after, field)}, and the trained attention has {getattr(before, field)}"
            raise UserError(f"{field_of(target, name, 'attention', field)}: {found}; allowed here: the trained value")
    extra = [field for field in _WITHOUT_COUNTERPART if getattr(before, field)]
    extra += ["qk_norm"] if before.qk_norm.kind != "none" else []
    if extra:
        raise UserError(
            f"{field_of(target, name, 'attention', 'kind')}: latent, which has no place for {', '.join(extra)} of the "
            f"trained attention; allowed: weights without {', '.join(extra)}"
        )
    for field in ("kv_rank", "q_rank"):
        rank = getattr(after, field)
        if rank and rank > own.d_model:
            found = f"{rank} exceeds d_model = {own.d_model}"
            raise UserError(f"{field_of(target, name, 'attention', field)}: {found}; allowed: up to {own.d_model}")
    if not isinstance(own.norm, RMSNorm | LayerNorm) or "before" not in own.norm.slots or not own.block.attention_norm:
        found = f"{own.norm.kind}, placement {getattr(own.norm, 'placement', 'none')}"
        raise UserError(
            f"model.norm: {found}; latent attention normalizes its narrow vectors, so the scale of its input must be "
            "known; allowed: an rmsnorm or layernorm before attention (placement pre, double or carried)"
        )


def rotary_pairs(target: Architecture, name: str, own: LayerConfig, wanted: LayerConfig) -> Pairs:
    """Return the dimensions that become shared: those whose rotation the new model has as well.

    The new model rotates rope_dim dimensions with the frequencies theta^(-2j / rope_dim). Each must be a frequency of
    the trained model. With the same theta, every (head_dim / rope_dim)-th pair is chosen, from the fastest on. With
    theta^(rope_dim / head_dim), the fastest pairs are chosen. Without a rotation, the last rope_dim dimensions are
    chosen. Raise UserError, with the field, if the frequencies or widths do not fit.
    """
    before, after = own.attention, wanted.attention
    assert isinstance(before, MultiHead)
    assert isinstance(after, Latent)
    width = before.head_dim or 0
    if isinstance(own.position, Rope) and isinstance(wanted.position, Rope):
        rotating = int(width * own.position.fraction)
        first, second = _of_equal_frequency(target, name, own.position, wanted.position, rotating, after.rope_dim)
    else:
        _check_position(target, name, own, wanted)
        rotating = 0
        first, second = _last(target, name, width, after.rope_dim)
    chosen = {*first, *second}
    rest = [i for i in range(width) if i not in chosen]
    pairs = Pairs(first, second, [i for i in rest if i < rotating], [i for i in rest if i >= rotating])
    if after.nope_dim not in (len(rest), width) or not after.nope_dim:
        allowed = " or ".join(str(n) for n in (len(rest), width) if n)
        found = f"{after.nope_dim}; a trained head has {width} dimensions, of which {after.rope_dim} become shared"
        raise UserError(f"{field_of(target, name, 'attention', 'nope_dim')}: {found}; allowed: {allowed}")
    return pairs


def _of_equal_frequency(
    target: Architecture, name: str, own: Rope, wanted: Rope, rotating: int, n_shared: int
) -> tuple[list[int], list[int]]:
    if wanted.fraction != 1:
        field = field_of(target, name, "position", "fraction")
        raise UserError(f"{field}: {wanted.fraction}; latent attention rotates all of rope_dim; allowed: 1")
    step = rotating / n_shared * math.log(wanted.theta) / math.log(own.theta)
    indices = [step * j for j in range(n_shared // 2)]
    if n_shared > rotating or any(abs(i - round(i)) > 1e-6 or round(i) >= rotating // 2 for i in indices):
        allowed = [n for n in range(2, rotating + 1, 2) if rotating % n == 0]
        raise UserError(
            f"{field_of(target, name, 'attention', 'rope_dim')}: {n_shared} dimensions with theta = {wanted.theta:g} "
            f"have frequencies that the {rotating} trained ones lack; allowed: {', '.join(map(str, allowed))} with "
            f"theta = {own.theta:g}, or any even number n up to {rotating} with theta = {own.theta:g}^(n / {rotating})"
        )
    chosen = [round(i) for i in indices]
    if own.pairing == "interleaved":
        return [2 * i for i in chosen], [2 * i + 1 for i in chosen]
    return chosen, [i + rotating // 2 for i in chosen]


def _check_position(target: Architecture, name: str, own: LayerConfig, wanted: LayerConfig) -> None:
    queries = "queries" in (own.position.acts_on, wanted.position.acts_on)
    if queries or own.position.reads_queries or wanted.position.reads_queries:
        raise UserError(
            f"{field_of(target, name, 'position', 'kind')}: {own.position.kind} to {wanted.position.kind}; allowed "
            "with a change to latent attention: rope in both models, or an encoding that leaves the queries alone"
        )


def _last(target: Architecture, name: str, width: int, n_shared: int) -> tuple[list[int], list[int]]:
    if n_shared % 2 or n_shared > width:
        found = f"{n_shared}, which is not an even number of the {width} dimensions of a trained head"
        raise UserError(
            f"{field_of(target, name, 'attention', 'rope_dim')}: {found}; allowed: even numbers up to {width}"
        )
    middle = width - n_shared // 2
    return list(range(width - n_shared, middle)), list(range(middle, width))
