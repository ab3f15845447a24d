"""Configs and weights of Arcee's AFM (ArceeForCausalLM in transformers)."""

from archlab.families.llama import SIZES, WEIGHTS, attention_biases, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="arcee",
    architecture="ArceeForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        *rms_norm(1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "relu2"),
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
