"""Configs and weights of the language model of Gemma 4 Unified (Gemma4UnifiedForCausalLM in transformers): the dense
Gemma 4 with other defaults.
"""

from archlab.families.gemma4_text import WEIGHTS, fields
from archlab.hf.family import Family

FAMILY = Family(
    model_type="gemma4_unified_text",
    architecture="Gemma4UnifiedForCausalLM",
    default_max_seq_len=262144,
    fields=fields(window=1024),
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"use_double_wide_mlp", "hidden_act"}),
)
