"""Configs and weights of the text part of the dense Qwen 3.5 models (Qwen3_5ForCausalLM in transformers): Qwen3-Next
with dense MLPs. The projections into the gated delta rule are stored apart.
"""

from archlab.families.llama import GATED, MLP
from archlab.families.qwen3_next import AROUND_MLP, LAYER, LAYERS, ConvolutionSilu, attention_fields, delta_of, ours
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear, stacked

ROPE = RopeKeys(fraction=0.25, idle=frozenset({"mrope_section", "mrope_interleaved"}))
"""RoPE with keys that divide its frequencies among time, height and width. In a text, all three equal the position of
the token."""

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
    fields=[
        *attention_fields(4),
        ROPE,
        Key("intermediate_size", "mlp.d_ff", 12288),
        *GATED,
        LAYERS,
        ConvolutionSilu(LAYERS),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*WEIGHTS, *MLP],
    has_mtp_layers=True,
    buffers=("rotary_emb.inv_freq",),
    prefix="model.",
    no_effect=frozenset({"full_attention_interval"}),
)
