"""Configs and weights of the Granite 3 mixture-of-experts models (GraniteMoeForCausalLM in transformers)."""

from archlab.families.granite import MULTIPLIERS
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, RMS_NORM, SIZES, attention_biases
from archlab.families.mixtral import MIXTURE, ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.mixture import all_experts
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

FIELDS = (
    *SIZES,
    *RMS_NORM,
    *MIXTURE,
    Key("num_local_experts", "mlp.experts", 8),
    Key("num_experts_per_tok", "mlp.active", 2),
    RopeKeys(),
    *attention_biases(),
    *MULTIPLIERS,
    Key("tie_word_embeddings", "head.tied", False),
)

MOE = "model.layers.{i}.block_sparse_moe"

WEIGHTS = [
    *ATTENTION,
    Row(f"{MOE}.router.layer.weight", ROUTER),
    *all_experts(f"{MOE}.input_linear.weight", f"{MOE}.output_linear.weight"),
    *PRE_NORMS,
    *AROUND,
]

FUSED_EXPERTS = [
    Row(f"{MOE}.router.weight", ROUTER),
    *all_experts(f"{MOE}.experts.gate_up_proj", f"{MOE}.experts.down_proj"),
]
"""Rows for files in which one tensor contains a matrix of all experts of a layer. transformers has this layout in
memory."""

FAMILY = Family(
    model_type="granitemoe",
    architecture="GraniteMoeForCausalLM",
    default_max_seq_len=2048,
    fields=FIELDS,
    weights=WEIGHTS,
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_experts": "num_local_experts"},
)
