"""Configs and weights of Nemotron 4 and Minitron (NemotronForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

FAMILY = Family(
    model_type="nemotron",
    architecture="NemotronForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        Always("norm.kind", "layernorm"),
        Always("norm.unit_offset", True),
        Key("norm_eps", "norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "relu2"),
        RopeKeys(fraction=0.5),
        Only("rope_percent", 0.5, written=False),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
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
