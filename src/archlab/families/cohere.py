"""Configs and weights of Command R (CohereForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, GATED, MLP, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Switch
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

FIELDS = (
    *SIZES,
    Always("norm.kind", "layernorm"),
    Always("norm.bias", False),
    Key("layer_norm_eps", "norm.eps", 1e-5),
    Always("block.parallel", "shared"),
    *GATED,
    *attention_biases(),
    Key("logit_scale", "head.scale", 0.0625),
    Key("tie_word_embeddings", "head.tied", True),
)

WEIGHTS = [
    *ATTENTION,
    *MLP,
    Row("model.layers.{i}.input_layernorm.weight", "layers.{i}.attention_norms.before.weight"),
    *AROUND,
]

FAMILY = Family(
    model_type="cohere",
    architecture="CohereForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *FIELDS,
        RopeKeys(theta=500000.0, pairing="interleaved"),
        Switch("use_qk_norm", "attention.qk_norm.kind", False, "layernorm", more=[
            Always("attention.qk_norm.bias", False),
            Always("attention.qk_norm.scope", "each_head"),
            Key("layer_norm_eps", "attention.qk_norm.eps", 1e-5),
        ]),
    ],
    weights=[
        *WEIGHTS,
        Row("model.layers.{i}.self_attn.q_norm.weight", "layers.{i}.attention.q_norm.norm.weight"),
        Row("model.layers.{i}.self_attn.k_norm.weight", "layers.{i}.attention.k_norm.norm.weight"),
    ],
    prefix="model.",
    no_effect=frozenset({"model_max_length"}),
)  # fmt: skip
