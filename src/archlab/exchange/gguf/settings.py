"""Settings of a model as keys of a GGUF file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import MLP, Absent, Mixer
from archlab.config.components.dense import Dense
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba import Mamba
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.config.components.position import Alibi, Rope
from archlab.config.components.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    Proportional,
    Yarn,
    yarn_amplitude,
)
from archlab.config.components.short_conv import ShortConv
from archlab.config.layers import LayerConfig, final_norm, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.exchange.gguf.architecture import GGUFArchitecture
from archlab.exchange.gguf.limits import has_attention
from archlab.model.rope_scaling import Frequencies, frequencies

if TYPE_CHECKING:
    from gguf import GGUFWriter


def settings(config: ModelConfig, architecture: GGUFArchitecture) -> dict[str, Any]:
    """Return the values of the keys that `add_settings` writes, by name without the prefix of the architecture."""
    from gguf import GGUFWriter

    writer, prefix = GGUFWriter(None, architecture.name), f"{architecture.name}."
    add_settings(writer, config, architecture)
    values = {key: entry.value for key, entry in writer.kv_data[0].items()}
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def add_settings(writer: "GGUFWriter", config: ModelConfig, architecture: GGUFArchitecture) -> None:
    """Write the settings of a model that llama.cpp reads from the file."""
    model, layers = resolve(config), layer_configs(config)
    first = layers[0]
    writer.add_vocab_size(model.vocab_size)
    writer.add_context_length(model.max_seq_len)
    writer.add_embedding_length(model.d_model)
    writer.add_block_count(model.n_layers)
    writer.add_feed_forward_length(_width(first.mlp))
    norm = final_norm(config)
    if isinstance(norm, LayerNorm):
        writer.add_layer_norm_eps(norm.eps)
    elif isinstance(norm, RMSNorm):
        writer.add_layer_norm_rms_eps(norm.eps)
    if model.head.softcap is not None:
        writer.add_final_logit_softcapping(model.head.softcap)
    if mixture := first_mixture(layers):
        _add_mixture(writer, mixture)
    if mixer := next((layer.mixer for layer in layers if not isinstance(layer.mixer, Absent)), None):
        _add_mixer(writer, mixer)
    if any(has_attention(layer) for layer in layers):
        writer.add_parallel_residual(first.block.parallel != "none")
        _add_attention(writer, layers, architecture.log_multiplier and architecture.log_multiplier(config))
    else:
        writer.add_head_count(0)
    architecture.write_more(writer, config)


def _width(mlp: MLP) -> int:
    """Return the width of a dense MLP, of each expert, or of a shared expert beside the experts (Gemma 4)."""
    if isinstance(mlp, MoE) and mlp.own_norms and mlp.shared:
        return mlp.shared.d_ff or 0
    return mlp.d_ff or 0 if isinstance(mlp, Dense | MoE) else 0


def first_mixture(layers: Sequence[LayerConfig]) -> MoE | None:
    return next((layer.mlp for layer in layers if isinstance(layer.mlp, MoE)), None)


def add_granite_scales(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the multipliers of Granite."""
    model = resolve(config)
    layer = next(filter(has_attention, layer_configs(config)))
    assert isinstance(model.embedding.scale, float), "resolved"
    writer.add_embedding_scale(model.embedding.scale)
    writer.add_attention_scale(layer.multi_head.scale)
    writer.add_residual_scale(layer.block.mlp_multiplier)
    writer.add_logit_scale(1 / model.readout.scale)


def _add_mixture(writer: "GGUFWriter", mixture: MoE) -> None:
    assert mixture.d_ff is not None, "resolved"
    writer.add_expert_count(mixture.experts)
    writer.add_expert_used_count(mixture.active)
    writer.add_expert_feed_forward_length(mixture.d_ff)
    if mixture.shared and mixture.shared.d_ff:
        writer.add_expert_shared_feed_forward_length(mixture.shared.d_ff)


def _add_mixer(writer: "GGUFWriter", mixer: Mixer) -> None:
    if isinstance(mixer, ShortConv):
        writer.add_shortconv_l_cache(mixer.taps)
    if isinstance(mixer, Mamba | Mamba2):
        writer.add_ssm_conv_kernel(mixer.taps)
        writer.add_ssm_inner_size(mixer.inner_width)
        writer.add_ssm_state_size(mixer.d_state)
    if isinstance(mixer, Mamba2):
        writer.add_ssm_time_step_rank(mixer.n_heads)
        writer.add_ssm_group_count(mixer.n_groups)
    if isinstance(mixer, Mamba):
        writer.add_ssm_time_step_rank(mixer.dt_rank)
        writer.add_ssm_dt_b_c_rms(mixer.inner_norm.kind != "none")


def _add_attention(writer: "GGUFWriter", all_layers: Sequence[LayerConfig], log_multiplier: float | None) -> None:
    """Write the settings of attention.

    See `GGUFArchitecture.log_multiplier`. If layers differ in their number of key/value heads, write the number for
    each layer: 0 for layers without attention. The widths are those of layers without a window, if there are any.
    """
    layers = [layer for layer in all_layers if has_attention(layer)]
    if isinstance(latent := layers[0].attention, Latent):
        _add_latent(writer, latent)
        _add_position(writer, [], layers, log_multiplier)
        return
    local = [layer for layer in layers if layer.multi_head.window is not None]
    full = [layer for layer in layers if layer not in local]
    heads = (full or local)[0].multi_head
    writer.add_head_count(heads.n_heads)
    n_kv_heads = [layer.multi_head.n_kv_heads if has_attention(layer) else 0 for layer in all_layers]
    writer.add_head_count_kv(n_kv_heads if len(set(n_kv_heads)) > 1 else n_kv_heads[0])
    writer.add_key_length(heads.head_dim)
    writer.add_value_length(heads.v_dim)
    if heads.clip_qkv is not None:
        writer.add_clamp_kqv(heads.clip_qkv)
    if heads.softcap is not None:
        writer.add_attn_logit_softcapping(heads.softcap)
    if local and local[0].multi_head.window is not None:
        writer.add_sliding_window(local[0].multi_head.window)
        writer.add_sliding_window_pattern([layer in local for layer in layers])
    _add_position(writer, local, full, log_multiplier)


def _add_latent(writer: "GGUFWriter", latent: Latent) -> None:
    """Write the widths of latent attention. llama.cpp computes it as attention with one wide key/value head."""
    writer.add_head_count(latent.n_heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(latent.kept_width)
    writer.add_value_length(latent.kv_rank)
    writer.add_key_length_mla(latent.query_width)
    writer.add_value_length_mla(latent.v_dim or 0)
    writer.add_kv_lora_rank(latent.kv_rank)
    writer.add_q_lora_rank(latent.q_rank or 0)


def _add_position(
    writer: "GGUFWriter", local: list[LayerConfig], full: list[LayerConfig], log_multiplier: float | None
) -> None:
    placed = [*full, *local]
    layer = next((layer for layer in placed if isinstance(layer.position, Rope)), placed[0])
    rope = layer.position
    if isinstance(rope, Alibi):
        writer.add_max_alibi_bias(rope.max_bias)
    if not isinstance(rope, Rope):
        return
    assert isinstance(layer.attention, AnyAttention), "a layer with attention"
    writer.add_rope_dimension_count(int(rope.rotated(layer.attention.rotary_width)))
    writer.add_rope_freq_base(rope.theta)
    if local and isinstance(local[0].position, Rope):
        writer.add_rope_freq_base_swa(local[0].position.theta)
    if isinstance(rope.scaling, LinearScaling | Yarn):
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType(rope.scaling.kind))
        writer.add_rope_scaling_factor(rope.scaling.factor)
    if isinstance(rope.scaling, Yarn):
        writer.add_rope_scaling_orig_ctx_len(rope.scaling.original_max_seq_len)
        if log_multiplier is not None:
            writer.add_rope_scaling_yarn_log_mul(log_multiplier)
        elif rope.scaling.attention_factor is not None:  # llama.cpp multiplies its usual factor by this one
            writer.add_rope_scaling_attn_factors(rope.scaling.attention_factor / yarn_amplitude(rope.scaling.factor))


def rope_factors(config: ModelConfig) -> Tensor | None:
    """Return the frequency divisors of Llama 3's RoPE scaling or of p-RoPE, or None for any other scaling.

    The tensor is float32 [head_dim / 2] and has one divisor for each pair of dimensions. Pairs that p-RoPE does not
    rotate have a divisor so large that their angles are 0.
    """
    for layer in layer_configs(config):
        rope = layer.position
        if not isinstance(rope, Rope) or not isinstance(rope.scaling, Llama3Scaling | Proportional):
            continue
        n, plain = layer.multi_head.head_dim, rope.model_copy(update={"scaling": NoScaling()})
        divisors = _frequencies(plain, n).per_token / _frequencies(rope, n).per_token
        return divisors.clamp(max=1e30).float()
    return None


def _frequencies(rope: Rope, n: int) -> Frequencies:
    return frequencies(rope, n, torch.zeros(1, 1, 1), torch.arange(n // 2, dtype=torch.float64))
