"""Configs and weights of BioGPT (BioGptForCausalLM in transformers)."""

from archlab.families.llama import WIDTHS
from archlab.families.xglm import SCALED_EMBEDDING
from archlab.hf.family import Family
from archlab.hf.fields import NO_CROSS_ATTENTION, ActivationKey, Always, Key
from archlab.hf.weight_map import Row, linear

LAYER = "biogpt.layers.{i}"

FAMILY = Family(
    model_type="biogpt",
    architecture="BioGptForCausalLM",
    default_max_seq_len=1024,
    fields=[
        *WIDTHS,
        Always("norm.kind", "layernorm"),
        Always("norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "gelu"),
        Always("mlp.bias", True),
        Always("attention.qkv_bias", True),
        Always("attention.out_bias", True),
        Always("position.kind", "learned"),
        Always("position.offset", 2),
        SCALED_EMBEDDING,
        NO_CROSS_ATTENTION,
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("biogpt.embed_tokens.weight", "embedding.weight"),
        Row("biogpt.embed_positions.weight", "positions.weight"),
        *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.self_attn.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.fc1", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.fc2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.self_attn_layer_norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.final_layer_norm", "layers.{i}.mlp_norms.before"),
        *linear("biogpt.layer_norm", "norm"),
        Row("output_projection.weight", "head.weight"),
    ],
    prefix="biogpt.",
    # The published code ignores this key: its norms use torch's default epsilon.
    no_effect=frozenset({"layer_norm_eps"}),
)
