"""Configs and weights of StarCoder 2 (Starcoder2ForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

FAMILY = Family(
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        # This field overrides the one in SIZES, because its default differs from Llama's.
        Key("num_key_value_heads", "attention.n_kv_heads", 2),
        Always("norm.kind", "layernorm"),
        Key("norm_epsilon", "norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "gelu_pytorch_tanh"),
        Key("sliding_window", "attention.window", None),
        RopeKeys(),
        Key("use_bias", "attention.qkv_bias", True),
        Key("use_bias", "attention.out_bias", True),
        Key("use_bias", "mlp.bias", True),
        Key("tie_word_embeddings", "head.tied", True),
        Only("mlp_type", "default", written=False),
        Only("norm_type", "layer_norm", written=False),
    ],
    weights=[
        *ATTENTION,
        *linear("model.layers.{i}.mlp.c_fc", "layers.{i}.mlp.up"),
        *linear("model.layers.{i}.mlp.c_proj", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
)
