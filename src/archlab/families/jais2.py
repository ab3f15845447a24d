"""Configs and weights of Jais 2 (Jais2ForCausalLM in transformers): Llama with LayerNorm, a plain MLP and biases."""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

FAMILY = Family(
    model_type="jais2",
    architecture="Jais2ForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *SIZES,
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "relu2"),
        RopeKeys(),
        *attention_biases(default=True),
        Key("mlp_bias", "mlp.bias", True),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *linear("model.layers.{i}.mlp.up_proj", "layers.{i}.mlp.up"),
        *linear("model.layers.{i}.mlp.down_proj", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
)
