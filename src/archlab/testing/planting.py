"""Ways to plant a mistake in a copy of archlab's reference.

Most functions take what is wrong, and return a function that changes a reference in place. Shapes: B batch, T queries,
S keys, H query heads, K key/value heads, C head_dim, V v_dim.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archlab.model.activations import make_activation
from archlab.model.arithmetic import Same, scaled
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.layer import Layer
from archlab.model.masks import dense
from archlab.model.mlp import MLP
from archlab.model.norms import LayerNorm, RMSNorm
from archlab.testing.reference import Reference

Plant = Callable[[Reference], None]


class Mistake(NamedTuple):
    """A known mistake."""

    name: str
    words: str
    """Sentence that says what the code does, and what it should do."""
    plants: Sequence[Plant]
    """Changes of archlab's reference that make this mistake. They differ in details, such as the number that replaces
    -inf."""


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
    sees_mean: bool = False,
    has_weight: bool = True,
    offset: float | None = None,
    has_bias: bool = True,
) -> Tensor:
    """Return the norm's output. With `sees_mean`, the divisor is computed before the mean is subtracted."""
    is_centered = isinstance(norm, LayerNorm) if is_centered is None else is_centered
    centered = x - x.mean(-1, keepdim=True) if is_centered else x
    normed = centered / divisor(x if sees_mean else centered, norm.eps)
    if norm.weight is not None and has_weight:
        normed = normed * (norm.weight + (norm.offset if offset is None else offset))
    bias = norm.bias if isinstance(norm, LayerNorm) and has_bias else None
    return normed if bias is None else normed + bias


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


def splitting(split: Callable[[Tensor, int], Tensor], merge: Callable[[Tensor], Tensor] | None = None) -> Plant:
    """Return a plant that splits [B, T, H * C] into heads [B, H, T, C] of a width in another way. `merge` changes the
    output [B, H, T, V]."""

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            attention.__dict__["_split"] = split
        if merge is not None:
            attending(merge=merge)(reference)

    return plant


def without_moving_axes(x: Tensor, width: int) -> Tensor:
    return x.reshape(x.shape[0], -1, x.shape[1], width)


def heads_last(x: Tensor, width: int) -> Tensor:
    return x.unflatten(-1, (width, -1)).movedim(-1, 1)


def merged_heads_last(mixed: Tensor) -> Tensor:
    """Return the tensor [B, H, T, V] that attention merges into [B, T, V * H]."""
    return mixed.permute(0, 2, 3, 1).flatten(2).unflatten(-1, (mixed.shape[1], -1)).transpose(1, 2)


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


def add_input(module: nn.Module) -> None:
    """Add the input of attention or an MLP to its output."""
    forward = module.forward
    module.__dict__["forward"] = lambda x, *others: x + forward(x, *others)


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


def with_residuals(*branches: str, times: float = 1.0, of_layer: bool = False) -> Plant:
    """Return a plant whose layers add another tensor than the stream to the output of these branches.

    It is the stream `times` a number, or the input of the layer with `of_layer`.
    """

    def forward(layer: Layer, x: Tensor, context: Context, states: Any = None) -> Tensor:
        layer_input = x
        for stage in layer.stages:
            first = getattr(layer, f"{stage[0].name}_norms")
            other = layer_input if of_layer else times * x
            total = other if stage[0].name in branches else x
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


def share_norm(name: str) -> Callable[[Layer], None]:
    """Return a change of a layer after which both of its branches have the norms of this name."""

    def change(layer: Layer) -> None:
        if hasattr(layer, "attention_norms") and hasattr(layer, "mlp_norms"):
            layer.attention_norms = layer.mlp_norms = getattr(layer, name)

    return change


def without_norms(name: str) -> Callable[[Layer], None]:
    """Return a change of a layer after which the branch with the norms of this name reads the stream itself."""

    def change(layer: Layer) -> None:
        if hasattr(layer, name):
            getattr(layer, name).before = Same()

    return change


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


def apply_to_logits(function: Callable[[Tensor], Tensor]) -> Plant:
    """Return a plant that applies a function to the logits."""

    def change(model: Decoder) -> None:
        forward = model.head.forward
        model.head.__dict__["forward"] = lambda *inputs: function(forward(*inputs))

    return in_model(change)


def skip_layer(index: int) -> Plant:
    """Return a plant that leaves out a layer."""

    def change(model: Decoder) -> None:
        model.layers[index].__dict__["forward"] = lambda x, *others: x

    return in_model(change)


def scale_embedding(model: Decoder) -> None:
    """Multiply the embedding by the square root of its width, or leave out the factor that the config sets."""
    width = model.embedding.weight.shape[-1]
    model.embedding.scale = float(width) ** 0.5 if model.embedding.scale == 1 else 1.0
