"""Configs and weights of Llama 2, 3 and 3.1, DeepSeek-LLM and Yi (LlamaForCausalLM in transformers)."""

from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Field, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear

WIDTHS = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_hidden_layers", "n_layers"),
    Key("max_position_embeddings", "max_seq_len"),
    Key("intermediate_size", "mlp.d_ff"),
    Key("num_attention_heads", "attention.n_heads"),
)
"""Keys for the sizes of a model, without the number of key/value heads and the width of a head."""

SIZES = (
    *WIDTHS,
    Key("num_key_value_heads", "attention.n_kv_heads", None),
    Key("head_dim", "attention.head_dim", None),
)


def kv_heads(default: int) -> Key:
    """Return the key for the number of key/value heads. `default` is the value that the published class uses if the key
    is absent.

    A null in config.json means one key/value head per query head. Put this field after SIZES, because a later field
    overrides an earlier one.
    """
    return Key("num_key_value_heads", "attention.n_kv_heads", default, nullable=True)


def attention_biases(default: bool = False) -> tuple[Key, Key]:
    """Return the fields for the key `attention_bias`, which adds biases to all projections of attention."""
    return Key("attention_bias", "attention.qkv_bias", default), Key("attention_bias", "attention.out_bias", default)


def rms_norm(eps: float) -> tuple[Field, ...]:
    return (
        Always("norm.kind", "rmsnorm"),
        Always("norm.cast", "before_weight"),
        Key("rms_norm_eps", "norm.eps", eps),
    )


RMS_NORM = rms_norm(1e-6)

GATED = (Always("mlp.kind", "gated"), ActivationKey("hidden_act", "silu"))

ATTENTION = [
    *linear("model.layers.{i}.self_attn.q_proj", "layers.{i}.attention.q"),
    *linear("model.layers.{i}.self_attn.k_proj", "layers.{i}.attention.k"),
    *linear("model.layers.{i}.self_attn.v_proj", "layers.{i}.attention.v"),
    *linear("model.layers.{i}.self_attn.o_proj", "layers.{i}.attention.out"),
]

MLP = [
    *linear("model.layers.{i}.mlp.gate_proj", "layers.{i}.mlp.gate"),
    *linear("model.layers.{i}.mlp.up_proj", "layers.{i}.mlp.up"),
    *linear("model.layers.{i}.mlp.down_proj", "layers.{i}.mlp.down"),
]

PRE_NORMS = [
    *linear("model.layers.{i}.input_layernorm", "layers.{i}.attention_norms.before"),
    *linear("model.layers.{i}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
]

AROUND = [
    Row("model.embed_tokens.weight", "embedding.weight"),
    *linear("model.norm", "norm"),
    Row("lm_head.weight", "head.weight"),
]

WEIGHTS = [*ATTENTION, *MLP, *PRE_NORMS, *AROUND]

FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *RMS_NORM,
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
