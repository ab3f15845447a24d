"""Configs and weights of Persimmon (PersimmonForCausalLM in transformers)."""

from archlab.families.llama import PRE_NORMS, WIDTHS
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key, Switch
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear

LAYER = "model.layers.{i}"

FAMILY = Family(
    model_type="persimmon",
    architecture="PersimmonForCausalLM",
    default_max_seq_len=16384,
    fields=[
        *WIDTHS,
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "relu2"),
        Always("mlp.bias", True),
        Always("attention.qkv_bias", True),
        Always("attention.out_bias", True),
        Switch("qk_layernorm", "attention.qk_norm.kind", True, "layernorm", more=[
            Key("layer_norm_eps", "attention.qk_norm.eps", 1e-5),
        ]),
        RopeKeys(fraction=0.5),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        Row("model.embed_tokens.weight", "embedding.weight"),
        *linear(f"{LAYER}.self_attn.query_key_value", QKV, QKV_PER_HEAD),
        *linear(f"{LAYER}.self_attn.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.self_attn.q_layernorm", "layers.{i}.attention.q_norm.norm"),
        *linear(f"{LAYER}.self_attn.k_layernorm", "layers.{i}.attention.k_norm.norm"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        *linear("model.final_layernorm", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="model.",
)  # fmt: skip
