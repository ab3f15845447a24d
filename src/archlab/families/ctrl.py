"""Configs and weights of CTRL (CTRLLMHeadModel in transformers)."""

from archlab.families.gpt2 import ALIASES, ALWAYS_BIASED
from archlab.families.pegasus import SINUSOIDS
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Only
from archlab.hf.weight_map import Row, linear

LAYER = "transformer.h.{i}"

FAMILY = Family(
    model_type="ctrl",
    architecture="CTRLLMHeadModel",
    fields=[
        Key("vocab_size", "vocab_size", 246534),
        Key("n_embd", "d_model", 1280),
        Key("n_layer", "n_layers", 48),
        Key("n_positions", "max_seq_len", 256),
        Key("n_head", "attention.n_heads", 16),
        *ALWAYS_BIASED,
        *SINUSOIDS,
        Always("embedding.scale", "sqrt_d_model"),
        Always("norm.kind", "layernorm"),
        Always("norm.eps", 1e-6),
        Only("layer_norm_epsilon", 1e-6, "1e-06, because the norms inside the layers always have this epsilon"),
        Always("mlp.kind", "plain"),
        Key("dff", "mlp.d_ff", 8192),
        Always("mlp.activation", "relu"),
        Always("head.bias", True),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("transformer.w.weight", "embedding.weight"),
        *linear(f"{LAYER}.multi_head_attention.Wq", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.multi_head_attention.Wk", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.multi_head_attention.Wv", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.multi_head_attention.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.ffn.0", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.ffn.2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.layernorm1", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.layernorm2", "layers.{i}.mlp_norms.before"),
        *linear("transformer.layernorm", "norm"),
        *linear("lm_head", "head"),
    ],
    ignored=("pos_encoding",),
    prefix="transformer.",
    no_effect=frozenset({"n_ctx"}),
    aliases=ALIASES,
)
