"""Configs and weights of GLM-4-0414 (Glm4ForCausalLM in transformers): norms before and after each branch."""

from archlab.families.glm import FIELDS, MLP
from archlab.families.llama import AROUND, ATTENTION
from archlab.hf.family import Family
from archlab.hf.fields import Always
from archlab.hf.weight_map import linear

FAMILY = Family(
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    default_max_seq_len=131072,
    fields=[*FIELDS, Always("norm.placement", "double")],
    weights=[
        *ATTENTION,
        *MLP,
        *linear("model.layers.{i}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear("model.layers.{i}.post_self_attn_layernorm", "layers.{i}.attention_norms.after"),
        # The name is misleading: this norm comes before the MLP.
        *linear("model.layers.{i}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
        *linear("model.layers.{i}.post_mlp_layernorm", "layers.{i}.mlp_norms.after"),
        *AROUND,
    ],
    prefix="model.",
)
