"""Configs and weights of Gemma 2 (Gemma2ForCausalLM in transformers)."""

import math

from archlab.families.gemma import gemma_fields
from archlab.families.llama import AROUND, ATTENTION, MLP
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key
from archlab.hf.layer_types import LayerTypes, full_every
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

SCALE = Key(
    "query_pre_attn_scalar",
    "attention.scale",
    256,
    from_hf=lambda n: 1 / math.sqrt(n),
    to_hf=lambda scale: max(1, round(scale**-2)),
)

DOUBLE_NORMS = [
    *linear("model.layers.{i}.input_layernorm", "layers.{i}.attention_norms.before"),
    *linear("model.layers.{i}.post_attention_layernorm", "layers.{i}.attention_norms.after"),
    *linear("model.layers.{i}.pre_feedforward_layernorm", "layers.{i}.mlp_norms.before"),
    *linear("model.layers.{i}.post_feedforward_layernorm", "layers.{i}.mlp_norms.after"),
]

FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *gemma_fields(kv_heads=4, activation_key="hidden_activation"),
        Always("norm.placement", "double"),
        SCALE,
        Key("attn_logit_softcapping", "attention.softcap", 50.0, nullable=True),
        Key("final_logit_softcapping", "head.softcap", 30.0, nullable=True),
        RopeKeys(),
        LayerTypes(full_every(2, fixed=True), unused=4096),
    ],
    weights=[*ATTENTION, *MLP, *DOUBLE_NORMS, *AROUND],
    prefix="model.",
    no_effect=frozenset({"hidden_act"}),
)
