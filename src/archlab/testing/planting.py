"""Ways to plant a mistake in a copy of archlab's reference.

Each function takes what is wrong, and returns a function that changes a reference in place. Shapes: B batch, T queries,
S keys, H query heads, K key/value heads, C head_dim, V v_dim.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlab.config.components.position import Rope
from archlab.config.core.registry import make
from archlab.model.activations import make_activation
from archlab.model.arithmetic import Same, scaled
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.layer import Layer
from archlab.model.masks import dense
from archlab.model.mlp import MLP
from archlab.model.norms import LayerNorm, RMSNorm
from archlab.model.rotary import Rotation
from archlab.testing.reference import Reference

Plant = Callable[[Reference], None]

Divisor = Callable[[Tensor, float], Tensor]
"""Function of the input, [..., T, D], and eps that returns the divisor of a norm."""


def in_norms(kind: type[RMSNorm] | type[LayerNorm], **wrong: Any) -> Plant:
    """Return a plant that changes the norms of a kind. `wrong` holds the changed arguments of `_normed`."""

    def plant(reference: Reference) -> None:
        for norm in reference.modules():
            if isinstance(norm, kind):
                norm.__dict__["forward"] = partial(_normed, norm, **wrong)

    return plant


def root(x: Tensor, eps: float) -> Tensor:
    """Return the right divisor: the root of the mean square plus eps, [..., T, 1]."""
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _normed(
    norm: RMSNorm | LayerNorm,
    x: Tensor,
    *,
    divisor: Divisor = root,
    is_centered: bool | None = None,
    has_weight: bool = True,
    offset: float | None = None,
    has_bias: bool = True,
) -> Tensor:
    is_centered = isinstance(norm, LayerNorm) if is_centered is None else is_centered
    x = x - x.mean(-1, keepdim=True) if is_centered else x
    normed = x / divisor(x, norm.eps)
    if norm.weight is not None and has_weight:
        normed = normed * (norm.weight + (norm.offset if offset is None else offset))
    bias = norm.bias if isinstance(norm, LayerNorm) and has_bias else None
    return normed if bias is None else normed + bias


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


Weighing = Callable[[Tensor, Tensor], Tensor]
"""Function of scores [B, H, T, S] and a mask [B or 1, 1, T, S] that returns the weights of attention."""


def softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Return the right weights: a softmax over the visible keys."""
    return scores.masked_fill(~seen, float("-inf")).softmax(-1)


def attending(
    weigh: Weighing = softmax,
    scale: Callable[[MultiHeadAttention], float] | None = None,
    repeat: Callable[[Tensor, int], Tensor] = lambda x, group: x.repeat_interleave(group, 1),
    merge: Callable[[Tensor], Tensor] = lambda mixed: mixed,
    *,
    swaps: bool = False,
) -> Plant:
    """Return a plant that changes multi-head attention between the projections.

    `repeat` copies the keys and values for the query heads of a group, and `merge` changes the output [B, H, T, V].
    """

    def attend(
        attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Tensor | None, **_: Any
    ) -> Tensor:
        group = attention.config.n_heads // attention.config.n_kv_heads
        k, v = repeat(k, group), repeat(v, group)
        q, k = (k, q) if swaps else (q, k)
        scores = q @ k.transpose(-1, -2) * (attention.attend.scale if scale is None else scale(attention))
        scores = scores if bias is None else scores + bias
        seen = dense(mask)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()[None] if seen is None else seen
        return merge(weigh(scores, seen[:, None]) @ v)

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            if attention.sinks is None and attention.config.softcap is None:
                attention.__dict__["attend"] = _keeping_scale(attention, attend)

    return plant


def _keeping_scale(attention: MultiHeadAttention, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    replaced = partial(attend, attention)
    replaced.__dict__["scale"] = attention.attend.scale
    return replaced


def splitting(*, merges_too: bool) -> Plant:
    """Return a plant that reshapes [B, T, H * C] into [B, H, T, C] without moving axes. With `merges_too`, the output
    is reshaped back in the same way."""
    merging = attending(merge=reshaped_back)

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            attention.__dict__["_split"] = lambda x, width: x.reshape(x.shape[0], -1, x.shape[1], width)
        if merges_too:
            merging(reference)

    return plant


def reshaped_back(mixed: Tensor) -> Tensor:
    """Return the tensor [B, H, T, V] that attention merges into `mixed.reshape(B, T, H * V)`."""
    B, H, T, V = mixed.shape
    return mixed.reshape(B, T, H, V).transpose(1, 2)


def in_attention(change: Callable[[MultiHeadAttention], None]) -> Plant:
    """Return a plant that calls `change` for all multi-head attention."""

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            change(attention)

    return plant


def drop_output(attention: MultiHeadAttention) -> None:
    """Replace the output projection by the identity."""
    attention.out = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]


def in_mlps(change: Callable[[MLP], None]) -> Plant:
    """Return a plant that calls `change` for every plain or gated MLP."""

    def plant(reference: Reference) -> None:
        for mlp in reference.modules():
            if isinstance(mlp, MLP):
                change(mlp)

    return plant


def activated(name: str) -> Plant:
    """Return a plant that replaces the activation of MLPs."""

    def change(mlp: MLP) -> None:
        mlp.activation = make_activation(name)

    return in_mlps(change)


def swap(module: nn.Module, first: str, second: str) -> None:
    """Exchange two submodules."""
    one, other = getattr(module, first), getattr(module, second)
    setattr(module, first, other)
    setattr(module, second, one)


def gated(combine: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Plant:
    """Return a plant in which gated MLPs combine the activation, the gate and the up projection in another way."""

    def change(mlp: MLP) -> None:
        if mlp.gate is not None:
            gate, up, down = mlp.gate, mlp.up, mlp.down
            mlp.__dict__["forward"] = lambda x, context=None, state=None: down(combine(mlp.activation, gate(x), up(x)))

    return in_mlps(change)


def in_layers(change: Callable[[Layer], None]) -> Plant:
    """Return a plant that calls `change` for every layer."""

    def plant(reference: Reference) -> None:
        for layer in reference.modules():
            if isinstance(layer, Layer):
                change(layer)

    return plant


def norms_moved(before: bool = False, after: bool = False, stream: bool = False, *, is_carried: bool = False) -> Plant:
    """Return a plant that moves the one norm of every branch to another place (`BranchNorms`)."""

    def change(layer: Layer) -> None:
        for branch in (branch for stage in layer.stages for branch in stage):
            norms = getattr(layer, f"{branch.name}_norms")
            norm = next(
                (m for m in (norms.before, norms.after, norms.stream) if not isinstance(m, nn.Identity)), Same()
            )
            for slot, has_norm in (("before", before), ("after", after), ("stream", stream)):
                setattr(norms, slot, norm if has_norm else Same())
        layer.is_carried = is_carried

    return in_layers(change)


def without_residual(*branches: str) -> Plant:
    """Return a plant whose layers do not add the stream to the output of these branches."""

    def forward(layer: Layer, x: Tensor, context: Context, states: Any = None) -> Tensor:
        for stage in layer.stages:
            first = getattr(layer, f"{stage[0].name}_norms")
            total = torch.zeros_like(x) if stage[0].name in branches else x
            for branch in stage:
                norms = getattr(layer, f"{branch.name}_norms")
                read = first.before(x) if branch.shares_input else norms.before(x)
                total = total + scaled(norms.after(getattr(layer, branch.name)(read, context, None)), branch.multiplier)
            x = first.stream(total)
        return x

    return in_layers(lambda layer: layer.__dict__.update(forward=partial(forward, layer)))


def parallel(layer: Layer) -> None:
    """Make all branches of a layer read the stream at its start."""
    layer.stages = (tuple(branch for stage in layer.stages for branch in stage),)


def reverse(layer: Layer) -> None:
    """Make the MLP come before attention."""
    layer.stages = layer.stages[::-1]


def swap_norms(layer: Layer) -> None:
    """Exchange the norms of attention and MLP."""
    if hasattr(layer, "attention_norms") and hasattr(layer, "mlp_norms"):
        swap(layer, "attention_norms", "mlp_norms")


def in_model(change: Callable[[Decoder], None]) -> Plant:
    """Return a plant that calls `change` for a whole model."""

    def plant(reference: Reference) -> None:
        if isinstance(reference.body, Decoder):
            change(reference.body)

    return plant


def tie(model: Decoder) -> None:
    """Make the head use the matrix of the embedding."""
    model.head.weight = None


def drop_final_norm(model: Decoder) -> None:
    """Leave out the norm before the head."""
    model.norm = Same()


def scale_embedding(model: Decoder) -> None:
    """Multiply the embedding by the square root of its width, or leave out the factor that the config sets."""
    width = model.embedding.weight.shape[-1]
    model.embedding.scale = float(width) ** 0.5 if model.embedding.scale == 1 else 1.0
