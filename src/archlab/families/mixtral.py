"""Configs and weights of Mixtral (MixtralForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.mixture import all_experts, each_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

MIXTURE = (Always("mlp.kind", "moe"), ActivationKey("hidden_act", "silu"))

ROUTER = "layers.{i}.mlp.router.weight"
CORRECTION = "layers.{i}.mlp.router.correction"

EXPERTS = [
    Row("model.layers.{i}.block_sparse_moe.gate.weight", ROUTER),
    *each_expert("model.layers.{i}.block_sparse_moe.experts", gate="w1", up="w3", down="w2"),
]

FUSED_EXPERTS = [
    Row("model.layers.{i}.mlp.gate.weight", ROUTER),
    *all_experts("model.layers.{i}.mlp.experts.gate_up_proj", "model.layers.{i}.mlp.experts.down_proj"),
]
"""Rows for files in which one tensor contains a matrix of all experts of a layer. transformers has this layout in
memory, and some files do, too."""

TRAINING_ONLY = frozenset({"router_aux_loss_coef", "output_router_logits", "router_jitter_noise"})
"""Keys of mixtures of experts that have an effect only in training."""

FAMILY = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        *rms_norm(1e-5),
        *MIXTURE,
        Key("num_local_experts", "mlp.experts", 8),
        Key("num_experts_per_tok", "mlp.active", 2),
        RopeKeys(theta=1e6),
        Key("sliding_window", "attention.window", None),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*ATTENTION, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_experts": "num_local_experts"},
)
