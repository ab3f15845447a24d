"""Known mistakes in hand-written rotary position embeddings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import NoScaling
from archlab.config.core.registry import make
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context
from archlab.model.rotary import Rotation
from archlab.testing.planting import Mistake, Plant, in_attention
from archlab.testing.reference import Reference


def rotated(
    change: Callable[[Rope], Mapping[str, Any]] = lambda rope: {},
    positions: Callable[[Tensor], Tensor] = lambda positions: positions,
) -> Plant:
    """Return a plant that rotates by another rope config or at other positions."""

    def turn(context: Context, rope: Rope, width: int) -> Any:
        changed = rope.model_copy(update=dict(change(rope)))
        lengths_BT = context.positions_BT[:, -1:] + 1
        return make(changed, width, positions(context.positions_BT), lengths_BT, torch.float64)

    return turned(turn)


def turned(turn: Callable[[Context, Rope, int], Any]) -> Plant:
    """Return a plant that replaces the rotation of queries and keys."""

    def plant(reference: Reference) -> None:
        if reference.part == "rotary":
            position = reference.layer_config.position
            if isinstance(position, Rope):
                reference.turn = lambda context: turn(context, position, reference.rotary_width)
            return
        for module, config in reference.layers:
            for attention in module.modules():
                if isinstance(attention, MultiHeadAttention) and isinstance(config.position, Rope):
                    arguments = attention.forward, turn, config.position, attention.config.head_dim
                    attention.__dict__["forward"] = partial(_with_rotation, *arguments)

    return plant


def _with_rotation(
    forward: Callable[..., Tensor],
    turn: Callable[[Context, Rope, int], Any],
    rope: Rope,
    width: int,
    x: Tensor,
    context: Context,
    state: Any = None,
) -> Tensor:
    return forward(x, replace(context, rotation=turn(context, rope, width)), state)


def without_signs(context: Context, rope: Rope, width: int) -> Rotation:
    """Return the rotation in which the sine is positive for both dimensions of a pair."""
    rotation = _rotation(context)
    return replace(rotation, sin=rotation.sin * _signs(rotation.interleaved, rotation.sin.shape[-1]))


def of_two_layouts(context: Context, rope: Rope, width: int) -> Rotation:
    """Return a rotation with the angles of one pairing, and the partners and signs of the other."""
    rotation, R = _rotation(context), _rotation(context).sin.shape[-1]
    signs = _signs(rotation.interleaved, R) * _signs(not rotation.interleaved, R)
    return replace(rotation, sin=rotation.sin * signs, interleaved=not rotation.interleaved)


def with_cos_for_sin(context: Context, rope: Rope, width: int) -> Rotation:
    """Return the rotation in which cosine and sine are exchanged."""
    rotation = _rotation(context)
    signs = _signs(rotation.interleaved, rotation.sin.shape[-1])
    return replace(rotation, cos=rotation.sin * signs, sin=rotation.cos * signs)


def with_frequencies(exponent: Callable[[Tensor, int], Tensor]) -> Callable[[Context, Rope, int], Rotation]:
    """Return the change to a rotation in which pair i of n turns by position * theta^(-exponent(i, n))."""

    def turn(context: Context, rope: Rope, width: int) -> Rotation:
        rotation = _rotation(context)
        n = rotation.sin.shape[-1] // 2
        if n == 1 or not isinstance(rope.scaling, NoScaling):
            raise RuntimeError("the mistake needs several pairs and a RoPE without scaling")
        per_token = rope.theta ** -exponent(torch.arange(n, dtype=torch.float64), n)
        angles = (context.positions_BT[..., None] * per_token)[:, None]
        both = angles.repeat_interleave(2, -1) if rotation.interleaved else torch.cat((angles, angles), -1)
        signs = _signs(rotation.interleaved, 2 * n)
        return replace(rotation, cos=both.cos(), sin=both.sin() * signs)

    return turn


class Reordered:
    """Rotation whose results are in the order of the other pairing."""

    def __init__(self, context: Context) -> None:
        self._rotation = _rotation(context)

    def rotate(self, x: Tensor) -> Tensor:
        rotated, R = self._rotation.rotate(x), self._rotation.sin.shape[-1]
        shape = (-1, 2) if self._rotation.interleaved else (2, -1)
        own = rotated[..., :R].unflatten(-1, shape).transpose(-1, -2).flatten(-2)
        return torch.cat((own, rotated[..., R:]), -1)


def _rotation(context: Context) -> Rotation:
    """Return archlab's rotation. Raise RuntimeError if another planted mistake has replaced it."""
    if not isinstance(context.rotation, Rotation):
        raise RuntimeError("another planted mistake has replaced the rotation")
    return context.rotation


def _signs(interleaved: bool, width: int) -> Tensor:
    """Return -1 for the first dimension of each pair and 1 for the second, [width]."""
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return signs.repeat(width // 2) if interleaved else signs.repeat_interleave(width // 2)


class OnlyQueries:
    """Rotation of queries. Keys, which attention rotates after the queries, stay as they are."""

    def __init__(self, context: Context) -> None:
        self._rotation, self._has_rotated = _rotation(context), False

    def rotate(self, x: Tensor) -> Tensor:
        is_query, self._has_rotated = not self._has_rotated, True
        return self._rotation.rotate(x) if is_query else x


def rotate_values(attention: MultiHeadAttention) -> None:
    """Rotate the values like the keys."""
    keys_and_values = attention._keys_and_values

    def changed(x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        k, v = keys_and_values(x, context)
        return k, _rotation(context).rotate(v)

    attention.__dict__["_keys_and_values"] = changed


def rotated_before_split(reference: Reference) -> None:
    """Rotate all heads of a token as one vector."""
    for module, config in reference.layers:
        for attention in module.modules():
            if isinstance(attention, MultiHeadAttention) and isinstance(config.position, Rope):
                attention.__dict__["_normed_and_rotated"] = partial(_rotated_as_one, config.position)


def _rotated_as_one(rope: Rope, x: Tensor, norm: nn.Module, context: Context) -> Tensor:
    whole = norm(x).transpose(1, 2).flatten(2)
    rotation = make(rope, whole.shape[-1], context.positions_BT, context.positions_BT[:, -1:] + 1, torch.float64)
    return rotation.rotate(whole[:, None])[:, 0].unflatten(-1, (x.shape[1], -1)).transpose(1, 2)


ROTARY = (
    Mistake(
        "rope-pairing",
        "RoPE pairs other dimensions than the config: halves (i with i + d/2) in place of interleaved neighbors "
        "(2i with 2i + 1), or the other way round.",
        [rotated(lambda rope: {"pairing": "half" if rope.pairing == "interleaved" else "interleaved"})],
    ),
    Mistake(
        "rope-layouts",
        "RoPE mixes two layouts: its angles are for interleaved pairs and its partners for halves, or the other way "
        "round.",
        [turned(of_two_layouts)],
    ),
    Mistake(
        "rope-output-order",
        "RoPE rotates the right pairs, but puts the results in the order of the other layout: halves in place of "
        "interleaved pairs, or the other way round.",
        [turned(lambda context, rope, width: Reordered(context))],
    ),
    Mistake("rope-cos-sin", "RoPE exchanges cosine and sine.", [turned(with_cos_for_sin)]),
    Mistake("rope-direction", "RoPE rotates in the opposite direction.", [rotated(positions=torch.neg)]),
    Mistake(
        "rope-sign",
        "RoPE lacks a minus sign: a pair (x, y) becomes (x cos - y sin, y cos + x sin).",
        [turned(without_signs)],
    ),
    Mistake(
        "rope-first-position", "RoPE counts positions from 1; they begin at 0.", [rotated(positions=lambda p: p + 1)]
    ),
    Mistake(
        "rope-exponent",
        "RoPE's exponent is wrong by a factor of 2: pair i of d dimensions turns by position * theta^(-2i/d).",
        [rotated(lambda rope: {"theta": rope.theta**0.5}), rotated(lambda rope: {"theta": rope.theta**2})],
    ),
    Mistake(
        "rope-exponent-sign",
        "RoPE's exponent has the wrong sign: pair i of d dimensions turns by position * theta^(-2i/d).",
        [rotated(lambda rope: {"theta": 1 / rope.theta})],
    ),
    Mistake(
        "rope-exponent-shift",
        "RoPE's exponents are shifted or stretched: pair i of d dimensions turns by position * theta^(-2i/d), and i "
        "goes from 0 to d/2 - 1.",
        [
            turned(with_frequencies(lambda pairs, n: (pairs + 1) / n)),
            turned(with_frequencies(lambda pairs, n: pairs / (n - 1))),
        ],
    ),
    Mistake(
        "rope-theta",
        "RoPE has another theta than the config.",
        [rotated(lambda rope, theta=theta: {"theta": theta}) for theta in (1e4, 1e5, 5e5, 1e6)],
    ),
    Mistake("rope-missing", "RoPE is missing: nothing is rotated.", [rotated(positions=torch.zeros_like)]),
    Mistake(
        "rope-keys",
        "RoPE rotates only the queries; it should rotate the keys, too.",
        [turned(lambda context, rope, width: OnlyQueries(context))],
    ),
    Mistake(
        "rope-values",
        "RoPE rotates the values, too; it should rotate only queries and keys.",
        [in_attention(rotate_values)],
    ),
    Mistake(
        "rope-before-split",
        "RoPE rotates all heads of a token as one vector; it should rotate each head, after the heads are split.",
        [rotated_before_split],
    ),
)
