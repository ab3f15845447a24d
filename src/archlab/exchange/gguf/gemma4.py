"""The llama.cpp architecture of Gemma 4."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from archlab.config.components.rope_scaling import Proportional
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, always_idle
from archlab.exchange.gguf.limits import GELU, no_biases, some_window
from archlab.exchange.gguf.tensors import (
    AROUND,
    DENSE_WIDTH,
    EXPERT_WIDTH,
    LAYER,
    MLP,
    ROPE_FACTORS,
    SHARED_WIDTH,
    dequantized,
    norms,
    separate,
)
from archlab.hf.fields import lookup
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.mixture import GATE_ABOVE_UP, is_mixture
from archlab.hf.weight_map import Row, linear

if TYPE_CHECKING:
    from gguf import GGUFWriter

_MLP = "layers.{i}.mlp"
ROWS = [
    *AROUND,
    *separate(),
    *MLP,
    *norms(),
    Row(f"{LAYER}.layer_output_scale.weight", "layers.{i}.stream_scale"),
    *(Row(f"{LAYER}.ffn_{part}.weight", f"{_MLP}.shared.{part}.weight") for part in ("gate", "up", "down")),
    Row(f"{LAYER}.ffn_gate_inp.weight", f"{_MLP}.router.weight"),
    Row(f"{LAYER}.ffn_gate_inp.scale", f"{_MLP}.router.norm.weight"),
    Row(f"{LAYER}.ffn_down_exps.scale", f"{_MLP}.router.expert_scale"),
    Row(
        f"{LAYER}.ffn_gate_up_exps.weight", (f"{_MLP}.experts.gate", f"{_MLP}.experts.up"), GATE_ABOVE_UP,
        when=is_mixture,
    ),
    Row(f"{LAYER}.ffn_down_exps.weight", f"{_MLP}.experts.down"),
    *linear(f"{LAYER}.ffn_norm", f"{_MLP}.shared_before", bias=False),
    *linear(f"{LAYER}.post_ffw_norm_1", f"{_MLP}.shared_after", bias=False),
    *linear(f"{LAYER}.pre_ffw_norm_2", f"{_MLP}.experts_before", bias=False),
    *linear(f"{LAYER}.post_ffw_norm_2", f"{_MLP}.experts_after", bias=False),
]  # fmt: skip


def p_rope_if_full(model: ModelConfig) -> Iterator[str]:
    """Check that layers have p-RoPE if they have no window, and otherwise RoPE without scaling, as llama.cpp
    assumes."""
    for i, layer in enumerate(layer_configs(model)):
        allowed = "proportional" if layer.multi_head.window is None else "none"
        if (kind := lookup(layer, "position.scaling.kind")) != allowed:
            yield f"model.position.scaling.kind is {kind} in layer {i}; allowed: {allowed}"


def _keys(header: Header) -> Raw:
    keys = header.keys
    slides = header.per_layer("attention.sliding_window_pattern", False)
    kv_heads = header.per_layer("attention.head_count_kv", keys["attention.head_count"])
    full = [i for i, local in enumerate(slides) if not local]
    theta, width = header.rope["rope_theta"], header.head_dim
    return {
        "layer_types": [SLIDING if local else FULL for local in slides],
        "head_dim": keys.get("attention.key_length_swa", width),
        "num_key_value_heads": next((n for n, local in zip(kv_heads, slides, strict=True) if local), kv_heads[0]),
        "per_layer_config": {str(i): {"head_dim": width, "num_key_value_heads": kv_heads[i]} for i in full},
        "attention_k_eq_v": not any(f"blk.{i}.attn_v.weight" in header.tensors for i in full),
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", theta)},
            FULL: {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": _turning(header)},
        },
        "final_logit_softcapping": keys.get("final_logit_softcapping") or None,
        "intermediate_size": keys[DENSE_WIDTH],
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input", 0),
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "enable_moe_block": bool(keys.get("expert_count")),
        "num_experts": keys.get("expert_count"),
        "top_k_experts": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get(EXPERT_WIDTH),
    }


def _turning(header: Header) -> float:
    """Return the fraction of the pairs of dimensions that p-RoPE rotates. The file contains their number."""
    if ROPE_FACTORS not in header.tensors:
        raise UserError(f"{ROPE_FACTORS} missing")
    n = header.head_dim
    pairs = int((dequantized(header.tensors[ROPE_FACTORS]) == 1).sum())
    exact = 2 * pairs / n
    return exact if Proportional(turning=exact).rotated_pairs(n) == pairs else math.nextafter(exact, 1.0)


def _write_more(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the widths of heads in layers with a window, and the sizes of options that archlab does not have.

    Without a soft cap, write 0, because llama.cpp's default is 30.
    """
    if config.head.softcap is None:
        writer.add_final_logit_softcapping(0.0)
    local = next(layer.multi_head for layer in layer_configs(config) if layer.multi_head.window is not None)
    writer.add_key_length_swa(local.head_dim)
    writer.add_value_length_swa(local.head_dim)
    writer.add_rope_dimension_count_swa(local.head_dim)
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)


GEMMA4: Sequence[GGUFArchitecture] = tuple(
    GGUFArchitecture(
        "gemma4", family, ROWS, [GELU, no_biases, some_window, p_rope_if_full],
        read_more=_keys, write_more=_write_more, idle=always_idle(SHARED_WIDTH),
    )
    for family in ("gemma4_text", "gemma4_unified_text")
)  # fmt: skip
