"""Configs and weights of GLM-4-9B of 2024 (GlmForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, GATED, PRE_NORMS, SIZES, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import HALVES, Row

FIELDS = (
    *SIZES,
    # These fields override those in SIZES, because GLM's defaults differ from Llama's.
    Key("num_key_value_heads", "attention.n_kv_heads", 2),
    Key("head_dim", "attention.head_dim", 128),
    *rms_norm(1.5625e-7),
    *GATED,
    RopeKeys(fraction=0.5, pairing="interleaved"),
    Key("attention_bias", "attention.qkv_bias", True),
    Always("attention.out_bias", False),
    Key("tie_word_embeddings", "head.tied", False),
)

MLP = [
    Row("model.layers.{i}.mlp.gate_up_proj.weight", ("layers.{i}.mlp.gate.weight", "layers.{i}.mlp.up.weight"), HALVES),
    Row("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.mlp.down.weight"),
]

FAMILY = Family(
    model_type="glm",
    architecture="GlmForCausalLM",
    default_max_seq_len=131072,
    fields=FIELDS,
    weights=[*ATTENTION, *MLP, *PRE_NORMS, *AROUND],
    prefix="model.",
)
