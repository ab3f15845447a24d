"""Names in GGUF files, and the conversions between tensors and archlab's parameters.

All architectures use the same names for tensors. They differ in which projections are fused, in the order of the rows
that RoPE rotates, and in the meaning of a norm's weight. Rows for tensors that a model does not have are skipped.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.families.mamba import MIXED
from archlab.hf.weight_map import COPY, HALVES, QKV, QKV_BLOCKS, Conversion, Row, linear

DENSE_WIDTH, EXPERT_WIDTH = "feed_forward_length", "expert_feed_forward_length"
"""Keys for the width of a dense MLP and of an expert, without the prefix of the architecture."""
SHARED_WIDTH = "expert_shared_feed_forward_length"
"""Key for the width of the shared expert, without the prefix of the architecture."""

EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

LAYER = "blk.{i}"

AROUND = [
    Row(EMBEDDING, "embedding.weight"),
    *linear("token_embd_norm", "embedding.norm"),
    Row("position_embd.weight", "positions.weight"),
    Row(OUTPUT, "head.weight"),
]


def _exchanged(rows: Tensor, layer: LayerConfig | None, shape: tuple[int, int]) -> Tensor:
    """Return the rows in another order. In each head, the rows that RoPE rotates are arranged as `shape`, whose two
    axes are then exchanged."""
    assert layer is not None, "the width of a head is needed"
    width = layer.multi_head.head_dim
    n_rotated = int(layer.position.rotated(width))
    rotated, kept = rows.unflatten(0, (-1, width)).split([n_rotated, width - n_rotated], dim=1)
    return torch.cat((rotated.unflatten(1, shape).transpose(1, 2).flatten(1, 2), kept), dim=1).flatten(0, 1)


ADJACENT_PAIRS = Conversion(
    lambda theirs, layer: [_exchanged(theirs, layer, (-1, 2))],
    lambda ours, layer: _exchanged(ours[0], layer, (2, -1)),
)
"""Conversion for RoPE. The file pairs dimensions 2i and 2i + 1. archlab pairs dimensions i and i + n / 2, if RoPE
rotates the first n dimensions of a head."""

ONE_MORE = Conversion(lambda theirs, _: [theirs - 1], lambda ours, _: ours[0].float() + 1)
"""Conversion for norms with `unit_offset`. The file stores the factor; archlab stores the factor minus 1."""


def separate(rotated: Conversion = COPY) -> list[Row]:
    """Return the weight mapping for separate query, key and value projections, and for the output projection.

    `rotated` is the conversion of the query and key rows, which RoPE rotates.
    """
    return [
        *linear(f"{LAYER}.attn_q", "layers.{i}.attention.q", rotated),
        *linear(f"{LAYER}.attn_k", "layers.{i}.attention.k", rotated),
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


def norms(conversion: Conversion = COPY, *, before_mlp: str = "ffn_norm", last: str = "output_norm") -> list[Row]:
    """Return the weight mapping for all norms except the embedding norm.

    `conversion` applies to the weights. `before_mlp` is the file's name for the norm before the MLP, and `last` for the
    norm before the head. If `before_mlp` is the usual name of another norm, that norm is left out.
    """
    names = {
        f"{LAYER}.attn_norm": "layers.{i}.attention_norms.before",
        f"{LAYER}.post_attention_norm": "layers.{i}.attention_norms.after",
        f"{LAYER}.{before_mlp}": "layers.{i}.mlp_norms.before",
        f"{LAYER}.post_ffw_norm": "layers.{i}.mlp_norms.after",
        f"{LAYER}.attn_q_norm": "layers.{i}.attention.q_norm.norm",
        f"{LAYER}.attn_k_norm": "layers.{i}.attention.k_norm.norm",
        last: "norm",
    }
    weights = [Row(f"{theirs}.weight", f"{ours}.weight", conversion) for theirs, ours in names.items()]
    return [*weights, *(Row(f"{theirs}.bias", f"{ours}.bias") for theirs, ours in names.items())]


def _parallel(kind: str) -> Callable[[LayerConfig], bool]:
    return lambda layer: layer.block.parallel == kind


FALCON_NORMS = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before", when=_parallel("shared")),
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mlp_norms.before", when=_parallel("separate")),
    *linear(f"{LAYER}.attn_norm_2", "layers.{i}.attention_norms.before", when=_parallel("separate")),
    *linear("output_norm", "norm"),
]
"""Weight mapping for Falcon's norms.

In a layer with two norms, `attn_norm` precedes the MLP and `attn_norm_2` precedes attention.
"""

ONE_ROW = Conversion(lambda theirs, _: [theirs.unsqueeze(0)], lambda ours, _: ours[0].squeeze(0))
"""Conversion for a matrix with one row, which the file stores as a vector."""

EXPERTS = [
    Row(f"{LAYER}.ffn_gate_inp.weight", "layers.{i}.mlp.router.weight"),
    *(Row(f"{LAYER}.ffn_{part}_exps.weight", f"layers.{{i}}.mlp.experts.{part}") for part in ("gate", "up", "down")),
    Row(f"{LAYER}.ffn_gate_inp_shexp.weight", "layers.{i}.mlp.shared_gate.weight", ONE_ROW),
    *(
        Row(f"{LAYER}.ffn_{part}_shexp.weight", f"layers.{{i}}.mlp.shared.{part}.weight")
        for part in ("gate", "up", "down")
    ),
]

CORRECTION = Row(f"{LAYER}.exp_probs_b.bias", "layers.{i}.mlp.router.correction")

ONE_CHANNEL = Conversion(lambda theirs, _: [theirs.unsqueeze(1)], lambda ours, _: ours[0].squeeze(1))
"""Conversion for the kernel of a convolution whose channels are separate. The file has no axis for its one input."""

DECAY = Conversion(lambda theirs, _: [(-theirs).log()], lambda ours, _: -ours[0].float().exp())
"""Conversion for the decay rates of a state-space model. The file stores A, and archlab stores log(-A)."""

MAMBA = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mixer_norms.before"),
    *linear(f"{LAYER}.ssm_in", ("layers.{i}.mixer.x", "layers.{i}.mixer.gate"), HALVES),
    Row(f"{LAYER}.ssm_conv1d.weight", "layers.{i}.mixer.conv.weight", ONE_CHANNEL),
    Row(f"{LAYER}.ssm_conv1d.bias", "layers.{i}.mixer.conv.bias"),
    Row(f"{LAYER}.ssm_x.weight", tuple(f"layers.{{i}}.mixer.{name}.weight" for name in ("dt_low", "B", "C")), MIXED),
    *(
        Row(f"{LAYER}.ssm_{theirs}_norm.weight", f"layers.{{i}}.mixer.{ours}_norm.weight")
        for theirs, ours in (("dt", "dt"), ("b", "B"), ("c", "C"))
    ),
    Row(f"{LAYER}.ssm_dt.weight", "layers.{i}.mixer.dt.weight"),
    Row(f"{LAYER}.ssm_dt.bias", "layers.{i}.mixer.dt_bias"),
    Row(f"{LAYER}.ssm_a", "layers.{i}.mixer.A_log", DECAY),
    Row(f"{LAYER}.ssm_d", "layers.{i}.mixer.D"),
    Row(f"{LAYER}.ssm_out.weight", "layers.{i}.mixer.out.weight"),
]


def dequantized(tensor: Any) -> Tensor:
    """Return a tensor of a file as float32, even if it is quantized. Raise UserError if archlab cannot read it."""
    from gguf import dequantize

    try:
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    except NotImplementedError:
        raise UserError(f"{tensor.name}: archlab cannot read the format {tensor.tensor_type.name}") from None
