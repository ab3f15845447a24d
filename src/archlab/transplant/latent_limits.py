"""Limits of latent attention that is made from multi-head attention: which features have a counterpart, and which
dimensions of a head all heads can share."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.config.components.position import Position, Rope
from archlab.config.components.rope_scaling import DynamicNTK, Longrope, NoScaling
from archlab.config.core.text import exact
from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.transplant.exact_lengths import Rotation, alike_up_to
from archlab.transplant.field_names import field_of
from archlab.transplant.weights import Architecture

_WITHOUT_COUNTERPART = (
    "qkv_bias", "clip_qkv", "temperature", "sinks", "sub_norm", "gate", "v_norm", "keys_as_values"
)  # fmt: skip
_EQUAL = ("n_heads", "v_dim")
_ALIKE = 1e-5
"""Relative tolerance of equal frequencies, because a theta in a config has few digits."""


class Pairs(NamedTuple):
    """Dimensions of each trained head, by the part of latent attention that receives them."""

    first: list[int]
    """First dimensions of the shared pairs, which all heads share."""
    second: list[int]
    rotated: list[int]
    """Dimensions that are rotated in the trained model and no longer afterwards."""
    fixed: list[int]
    """Dimensions that are never rotated."""
    position: Position
    """Position encoding of the new layer, with the trained scaling of RoPE."""


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
    the trained model, also after the scaling of RoPE. With the same theta, every (head_dim / rope_dim)-th pair is
    chosen, from the fastest on. With theta^(rope_dim / head_dim), the fastest pairs are chosen. Without a rotation, the
    last rope_dim dimensions are chosen. Raise UserError, with the field, if the frequencies or widths do not fit.
    """
    before, after = own.attention, wanted.attention
    assert isinstance(before, MultiHead)
    assert isinstance(after, Latent)
    width = before.head_dim or 0
    position = own.position
    if isinstance(own.position, Rope) and isinstance(wanted.position, Rope):
        if getattr(own.position.scaling, "long_attention_factor", None) is not None:
            raise UserError(
                f"{field_of(target, name, 'position', 'scaling')}: LongRoPE with long_attention_factor; allowed with a "
                "change to latent attention: one factor for texts of all lengths"
            )
        rotating = int(width * own.position.fraction)
        shared = _shared_pairs(target, name, own.position, wanted.position, rotating, after.rope_dim)
        position = _with_scaling(own.position, wanted.position, shared)
        first, second = _dimensions(own.position, rotating, shared)
    else:
        _check_position(target, name, own, wanted)
        rotating = 0
        first, second = _last(target, name, width, after.rope_dim)
    chosen = {*first, *second}
    rest = [i for i in range(width) if i not in chosen]
    pairs = Pairs(first, second, [i for i in rest if i < rotating], [i for i in rest if i >= rotating], position)
    if after.nope_dim not in (len(rest), width) or not after.nope_dim:
        allowed = " or ".join(str(n) for n in (len(rest), width) if n)
        found = f"{after.nope_dim}; a trained head has {width} dimensions, of which {after.rope_dim} become shared"
        raise UserError(f"{field_of(target, name, 'attention', 'nope_dim')}: {found}; allowed: {allowed}")
    return pairs


def _shared_pairs(target: Architecture, name: str, own: Rope, wanted: Rope, rotating: int, n_shared: int) -> list[int]:
    if wanted.fraction != 1:
        field = field_of(target, name, "position", "fraction")
        raise UserError(f"{field}: {wanted.fraction}; latent attention rotates all of rope_dim; allowed: 1")

    def pairs(n: int, theta: float) -> list[int] | None:
        position = wanted.model_copy(update={"theta": theta})
        return _pairs_of_equal_frequency(own, position, rotating, n, target.model.max_seq_len)

    if shared := pairs(n_shared, wanted.theta):
        return shared
    even = range(2, rotating + 1, 2)
    same = [n for n in even if pairs(n, own.theta)]
    root = [n for n in even if pairs(n, own.theta ** (n / rotating))]
    roots = f"any even number n up to {rotating}" if root == [*even] else f"n = {', '.join(map(str, root))}"
    scaling = "" if isinstance(own.scaling, NoScaling) else f" and the trained scaling, {own.scaling.kind},"
    raise UserError(
        f"{field_of(target, name, 'attention', 'rope_dim')}: {n_shared} dimensions with theta = {exact(wanted.theta)}"
        f"{scaling} have frequencies that the {rotating} trained ones lack; allowed: {', '.join(map(str, same))} with "
        f"theta = {exact(own.theta)}, or {roots} with theta = {exact(own.theta)}^(n / {rotating})"
    )


def _pairs_of_equal_frequency(own: Rope, wanted: Rope, rotating: int, n_shared: int, longest: int) -> list[int] | None:
    """Return the trained pairs that rotate as those of the new model do in texts of up to `longest` tokens. Return None
    if a pair has no counterpart."""
    step = rotating / n_shared * math.log(wanted.theta) / math.log(own.theta)
    indices = [step * j for j in range(n_shared // 2)]
    if isinstance(own.scaling, DynamicNTK) and n_shared == 2:  # its exponent n / (n - 2) does not exist
        return None
    if n_shared > rotating or any(abs(i - round(i)) > 1e-6 or round(i) >= rotating // 2 for i in indices):
        return None
    pairs = [round(i) for i in indices]
    new = Rotation(_with_scaling(own, wanted, pairs), n_shared, range(n_shared // 2))
    return pairs if alike_up_to(Rotation(own, rotating, pairs), new, _ALIKE) >= longest else None


def _with_scaling(own: Rope, wanted: Rope, pairs: Sequence[int]) -> Rope:
    """Return the new position encoding with the trained scaling. LongRoPE keeps the divisors of these pairs."""
    scaling = own.scaling
    if isinstance(scaling, Longrope):
        divisors = {"short_factor": scaling.short_factor, "long_factor": scaling.long_factor}
        scaling = scaling.model_copy(update={name: tuple(x[i] for i in pairs) for name, x in divisors.items()})
    return wanted.model_copy(update={"scaling": scaling})


def _dimensions(own: Rope, rotating: int, pairs: Sequence[int]) -> tuple[list[int], list[int]]:
    if own.pairing == "interleaved":
        return [2 * i for i in pairs], [2 * i + 1 for i in pairs]
    return [*pairs], [i + rotating // 2 for i in pairs]


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
