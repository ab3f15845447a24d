"""Configs and weights of VaultGemma (VaultGemmaForCausalLM in transformers): Gemma 2 without the norms after the
branches.
"""

from archlab.families.gemma import gemma_fields
from archlab.families.gemma2 import SCALE
from archlab.families.llama import AROUND, ATTENTION, MLP
from archlab.hf.family import Family
from archlab.hf.fields import Key, Only
from archlab.hf.layer_types import LayerTypes, full_every
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear

FAMILY = Family(
    model_type="vaultgemma",
    architecture="VaultGemmaForCausalLM",
    default_max_seq_len=8192,
    fields=[
        # VaultGemma's class has no switch for attention in both directions.
        *(part for part in gemma_fields(kv_heads=4, activation_key="hidden_activation") if not isinstance(part, Only)),
        SCALE,
        Key("attn_logit_softcapping", "attention.softcap", 50.0, nullable=True),
        Key("final_logit_softcapping", "head.softcap", 30.0, nullable=True),
        RopeKeys(),
        LayerTypes(full_every(2, fixed=True), unused=4096),
    ],
    weights=[
        *ATTENTION,
        *MLP,
        *linear("model.layers.{i}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear("model.layers.{i}.pre_feedforward_layernorm", "layers.{i}.mlp_norms.before"),
        *AROUND,
    ],
    prefix="model.",
    no_effect=frozenset({"hidden_act"}),
)
