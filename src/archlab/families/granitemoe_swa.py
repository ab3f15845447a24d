"""Configs and weights of the Granite SWA mixtures of experts (GraniteMoeSWAForCausalLM in transformers): sinks, windows
and a theta per layer.
"""

from dataclasses import replace

from archlab.families.granite_swa import LAYERS, SINKS
from archlab.families.granitemoe import FUSED_EXPERTS
from archlab.families.granitemoeshared import FAMILY as SHARED
from archlab.families.granitemoeshared import SHARED_WEIGHTS
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS

FAMILY = replace(
    SHARED,
    model_type="granitemoe_swa",
    architecture="GraniteMoeSWAForCausalLM",
    default_max_seq_len=2048,
    fields=[*SHARED.fields, *LAYERS],
    weights=[*ATTENTION, SINKS, *FUSED_EXPERTS, *SHARED_WEIGHTS, *PRE_NORMS, *AROUND],
    alternatives=(),
)
