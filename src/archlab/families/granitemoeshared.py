"""Configs and weights of Granite 4 (tiny preview) and others (GraniteMoeSharedForCausalLM in transformers): a mixture
with a shared expert.
"""

from archlab.families.granitemoe import FIELDS, FUSED_EXPERTS, WEIGHTS
from archlab.families.mixtral import TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.weight_map import HALVES, linear

SHARED = "model.layers.{i}.shared_mlp"

SHARED_WEIGHTS = [
    *linear(f"{SHARED}.input_linear", ("layers.{i}.mlp.shared.gate", "layers.{i}.mlp.shared.up"), HALVES),
    *linear(f"{SHARED}.output_linear", "layers.{i}.mlp.shared.down"),
]

FAMILY = Family(
    model_type="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    default_max_seq_len=2048,
    fields=[*FIELDS, Key("shared_intermediate_size", "mlp.shared.d_ff", 0, from_hf=lambda width: width or None)],
    weights=[*WEIGHTS, *SHARED_WEIGHTS],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_experts": "num_local_experts"},
)
