"""Configs and weights of Gemma 1 (GemmaForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, MLP, PRE_NORMS, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Field, Key, Only
from archlab.hf.rope import RopeKeys


def gemma_fields(kv_heads: int, activation_key: str) -> list[Field]:
    """Return the fields that all Gemma models share: a key for the head width, norms that multiply by 1 + weight, and a
    scaled embedding."""
    return [
        *SIZES,
        # These fields override those in SIZES, because Gemma's defaults differ from Llama's.
        Key("num_key_value_heads", "attention.n_kv_heads", kv_heads),
        Key("head_dim", "attention.head_dim", 256),
        Always("norm.kind", "rmsnorm"),
        Always("norm.unit_offset", True),
        Key("rms_norm_eps", "norm.eps", 1e-6),
        Always("mlp.kind", "gated"),
        ActivationKey(activation_key, "gelu_pytorch_tanh"),
        Always("embedding.scale", "sqrt_d_model"),
        Always("embedding.round_scale", True),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", True),
        Only("use_bidirectional_attention", False, "false, because no token may attend to later ones"),
    ]


FAMILY = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *gemma_fields(kv_heads=16, activation_key="hidden_act"),
        # In the first files, "gelu" means the tanh form. transformers corrects it when loading.
        ActivationKey("hidden_act", "gelu_pytorch_tanh", {"gelu": "gelu_tanh"}),
        RopeKeys(),
    ],
    weights=[*ATTENTION, *MLP, *PRE_NORMS, *AROUND],
    prefix="model.",
    no_effect=frozenset({"hidden_activation"}),
)
