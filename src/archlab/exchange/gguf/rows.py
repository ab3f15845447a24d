"""Where llama.cpp's files hold each of our tensors.

One naming serves every architecture; they differ in what is fused, in the order of rotated rows and in what a norm's
weight stands for. A row whose tensor a model does not have is left out.
"""

from collections.abc import Callable

from torch import Tensor

from archlab.config.layers import LayerConfig
from archlab.hf.weights import COPY, HALVES, QKV, QKV_BLOCKS, Row, Step, linear

LAYER = "blk.{i}"

AROUND = [
    Row("token_embd.weight", "embedding.weight"),
    *linear("token_embd_norm", "embedding.norm"),
    Row("position_embd.weight", "positions.weight"),
    Row("output.weight", "head.weight"),
]


def _turned(rows: Tensor, layer: LayerConfig | None, parts: int) -> Tensor:
    """Each head's rows, which are so many parts one after the other, with one of each part in turn."""
    assert layer is not None, "the width of a head is needed"
    return rows.unflatten(0, (-1, parts, layer.multi_head.head_dim // parts)).transpose(1, 2).flatten(0, 2)


SIDE_BY_SIDE = Step(
    lambda theirs, layer: [_turned(theirs, layer, layer.multi_head.head_dim // 2 if layer else 0)],
    lambda ours, layer: _turned(ours[0], layer, 2),
)
"""Theirs are the dimensions 2i and 2i + 1 that RoPE turns together; ours are i and i + head_dim / 2."""

ONE_MORE = Step(lambda theirs, _: [theirs - 1], lambda ours, _: ours[0].float() + 1)
"""Theirs is the factor, ours what 1 is added to (`unit_offset`)."""


def separate(turned: Step = COPY) -> list[Row]:
    """Queries, keys and values by themselves; `turned`: what becomes of the rows that RoPE turns."""
    return [
        *linear(f"{LAYER}.attn_q", "layers.{i}.attention.q", turned),
        *linear(f"{LAYER}.attn_k", "layers.{i}.attention.k", turned),
        *linear(f"{LAYER}.attn_v", "layers.{i}.attention.v"),
        *OUT,
    ]


OUT = linear(f"{LAYER}.attn_output", "layers.{i}.attention.out")

FUSED = [*linear(f"{LAYER}.attn_qkv", QKV, QKV_BLOCKS), *OUT]

MLP = [
    *linear(f"{LAYER}.ffn_gate", "layers.{i}.mlp.gate"),
    *linear(f"{LAYER}.ffn_up", "layers.{i}.mlp.up"),
    *linear(f"{LAYER}.ffn_down", "layers.{i}.mlp.down"),
]

FUSED_MLP = [
    *linear(f"{LAYER}.ffn_up", ("layers.{i}.mlp.gate", "layers.{i}.mlp.up"), HALVES),
    *linear(f"{LAYER}.ffn_down", "layers.{i}.mlp.down"),
]


def norms(step: Step = COPY) -> list[Row]:
    """All norms but the embedding's; one before a branch and one after it have names of their own."""
    return [
        *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before", step),
        *linear(f"{LAYER}.ffn_norm", "layers.{i}.mlp_norms.before", step),
        *linear(f"{LAYER}.post_attention_norm", "layers.{i}.attention_norms.after", step),
        *linear(f"{LAYER}.post_ffw_norm", "layers.{i}.mlp_norms.after", step),
        *linear(f"{LAYER}.attn_q_norm", "layers.{i}.attention.q_norm.norm", step),
        *linear(f"{LAYER}.attn_k_norm", "layers.{i}.attention.k_norm.norm", step),
        *linear("output_norm", "norm", step),
    ]


def _parallel(kind: str) -> Callable[[LayerConfig], bool]:
    return lambda layer: layer.block.parallel == kind


FALCON_NORMS = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before", when=_parallel("shared")),
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mlp_norms.before", when=_parallel("separate")),
    *linear(f"{LAYER}.attn_norm_2", "layers.{i}.attention_norms.before", when=_parallel("separate")),
    *linear("output_norm", "norm"),
]
"""The second norm is attention's, where there are two."""
