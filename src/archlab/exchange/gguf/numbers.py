"""The numbers of a config as llama.cpp reads them: from resolved layers, alike for every architecture."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archlab.config.components.position import Alibi, LinearScaling, Llama3Scaling, NoScaling, Rope, Yarn
from archlab.config.layers import LayerConfig, final_norm, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.model.rope_scaling import Frequencies, frequencies

if TYPE_CHECKING:
    from gguf import GGUFWriter


def add_numbers(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Sizes, heads, norms, windows, caps and positions."""
    model, layers = resolve(config), layer_configs(config)
    heads = layers[0].multi_head
    writer.add_vocab_size(model.vocab_size)
    writer.add_context_length(model.max_seq_len)
    writer.add_embedding_length(model.d_model)
    writer.add_block_count(model.n_layers)
    writer.add_feed_forward_length(layers[0].dense.d_ff)
    writer.add_parallel_residual(layers[0].block.parallel != "none")
    writer.add_head_count(heads.n_heads)
    writer.add_head_count_kv(heads.n_kv_heads)
    writer.add_key_length(heads.head_dim)
    writer.add_value_length(heads.v_dim)
    norm = final_norm(config)
    if norm.kind == "layernorm":
        writer.add_layer_norm_eps(norm.eps)
    elif norm.kind == "rmsnorm":
        writer.add_layer_norm_rms_eps(norm.eps)
    if heads.clip_qkv is not None:
        writer.add_clamp_kqv(heads.clip_qkv)
    if heads.softcap is not None:
        writer.add_attn_logit_softcapping(heads.softcap)
    if model.head.softcap is not None:
        writer.add_final_logit_softcapping(model.head.softcap)
    local = [layer for layer in layers if layer.multi_head.window is not None]
    if local and local[0].multi_head.window is not None:
        writer.add_sliding_window(local[0].multi_head.window)
        writer.add_sliding_window_pattern([layer in local for layer in layers])
    _add_position(writer, local, [layer for layer in layers if layer not in local])


def add_scales(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Granite's factors; that on the logits is a divisor there."""
    model = resolve(config)
    layer = layer_configs(config)[0]
    assert isinstance(model.embedding.scale, float), "resolved"
    writer.add_embedding_scale(model.embedding.scale)
    writer.add_attention_scale(layer.multi_head.scale)
    writer.add_residual_scale(layer.block.mlp_multiplier)
    writer.add_logit_scale(1 / model.readout.scale)


def _add_position(writer: "GGUFWriter", local: list[LayerConfig], full: list[LayerConfig]) -> None:
    """That of layers which see everything; of those with a window llama.cpp reads theta only."""
    layer = (full or local)[0]
    rope = layer.position
    if isinstance(rope, Alibi):
        writer.add_max_alibi_bias(rope.max_bias)
    if not isinstance(rope, Rope):
        return
    writer.add_rope_dimension_count(int(layer.multi_head.head_dim * rope.fraction))
    writer.add_rope_freq_base(rope.theta)
    if local and isinstance(local[0].position, Rope):
        writer.add_rope_freq_base_swa(local[0].position.theta)
    if isinstance(rope.scaling, LinearScaling | Yarn):
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType(rope.scaling.kind))
        writer.add_rope_scaling_factor(rope.scaling.factor)
    if isinstance(rope.scaling, Yarn):
        writer.add_rope_scaling_orig_ctx_len(rope.scaling.original_max_seq_len)
        if rope.scaling.attention_factor is not None:  # it multiplies the usual one there
            usual = rope.scaling.model_copy(update={"attention_factor": None})
            amplitude = _frequencies(rope.model_copy(update={"scaling": usual}), 4).amplitude
            writer.add_rope_scaling_attn_factors(rope.scaling.attention_factor / amplitude)


def rope_factors(config: ModelConfig) -> Tensor | None:
    """float32 [n / 2]: what divides each pair's frequency, where that is no single number (Llama 3)."""
    layer = layer_configs(config)[0]
    rope = layer.position
    if not isinstance(rope, Rope) or not isinstance(rope.scaling, Llama3Scaling):
        return None
    n, plain = layer.multi_head.head_dim, rope.model_copy(update={"scaling": NoScaling()})
    return (_frequencies(plain, n).per_token / _frequencies(rope, n).per_token).float()


def _frequencies(rope: Rope, n: int) -> Frequencies:
    return frequencies(rope, n, torch.zeros(1, 1, 1), torch.arange(n // 2, dtype=torch.float64))
