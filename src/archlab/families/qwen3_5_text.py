"""Configs and weights of the text part of the dense Qwen 3.5 models (Qwen3_5ForCausalLM in transformers): Qwen3-Next
with dense MLPs. The projections into the gated delta rule are stored apart.
"""

from archlab.families.llama import GATED, MLP
from archlab.families.qwen3_next import AROUND_MLP, LAYER, LAYERS, ConvolutionSilu, attention_fields, delta_of, ours
from archlab.hf.family import Family
from archlab.hf.fields import Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear, stacked

ROPE = RopeKeys(fraction=0.25, idle=frozenset({"mrope_section", "mrope_interleaved"}))
"""RoPE with keys that divide its frequencies among time, height and width. In a text, all three equal the position of
the token."""

PUBLISHED = (Only("attn_output_gate", True, written=False), Only("output_gate_type", "swish", written=False))
"""Keys of published files that say what the published code always does."""

NO_EFFECT = frozenset(
    {"full_attention_interval", "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}
)
"""Keys that `layer_types` repeats, that affect rounding only, or that are about layers for multi-token prediction."""

WEIGHTS = [
    *AROUND_MLP,
    *linear(
        f"{LAYER}.linear_attn.in_proj_qkv", ours("q", "k", "v"), stacked(lambda layer: delta_of(layer).conv_widths)
    ),
    *linear(f"{LAYER}.linear_attn.in_proj_z", "layers.{i}.mixer.gate"),
    *linear(f"{LAYER}.linear_attn.in_proj_b", "layers.{i}.mixer.beta"),
    *linear(f"{LAYER}.linear_attn.in_proj_a", "layers.{i}.mixer.decay"),
]

FAMILY = Family(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *attention_fields(4),
        ROPE,
        Key("intermediate_size", "mlp.d_ff", 12288),
        *GATED,
        LAYERS,
        ConvolutionSilu(LAYERS),
        Key("tie_word_embeddings", "head.tied", False),
        *PUBLISHED,
    ],
    weights=[*WEIGHTS, *MLP],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=NO_EFFECT,
)
