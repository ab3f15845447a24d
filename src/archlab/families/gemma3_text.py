"""Configs and weights of the language model of Gemma 3 (Gemma3ForCausalLM in transformers)."""

from archlab.families.gemma import gemma_fields
from archlab.families.gemma2 import DOUBLE_NORMS, SCALE
from archlab.families.llama import AROUND, ATTENTION, MLP
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes, full_every
from archlab.hf.rope_per_type import RopePerTypeOrOlderKeys
from archlab.hf.weight_map import Row

FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *gemma_fields(kv_heads=4, activation_key="hidden_activation"),
        Always("norm.placement", "double"),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Always("attention.qk_norm.unit_offset", True),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        SCALE,
        Key("final_logit_softcapping", "head.softcap", None),
        LayerTypes(full_every(6), unused=4096),
        RopePerTypeOrOlderKeys({FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}),
    ],
    weights=[
        *ATTENTION,
        Row("model.layers.{i}.self_attn.q_norm.weight", "layers.{i}.attention.q_norm.norm.weight"),
        Row("model.layers.{i}.self_attn.k_norm.weight", "layers.{i}.attention.k_norm.norm.weight"),
        *MLP,
        *DOUBLE_NORMS,
        *AROUND,
    ],
    prefix="model.",
    # The published code does not cap attention scores.
    no_effect=frozenset({"hidden_act", "attn_logit_softcapping"}),
)
