"""Configs and weights of the text part of Aria (AriaTextForCausalLM in transformers): Llama with a mixture of experts
and shared experts.
"""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, RMS_NORM, SIZES, attention_biases
from archlab.families.mixtral import ROUTER
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Only
from archlab.hf.mixture import GATE_BESIDE_UP, SharedExperts, shared_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import TRANSPOSE, Row

GATE_UP = ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up")
DOWN = "layers.{i}.mlp.experts.down"
EXPERTS = "model.layers.{i}.mlp.experts"

FAMILY = Family(
    model_type="aria_text",
    architecture="AriaTextForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *RMS_NORM,
        Always("mlp.kind", "moe"),
        Always("mlp.activation", "silu"),
        Only("hidden_act", "silu", "silu, because the published code always uses it in routed experts"),
        Key("moe_num_experts", "mlp.experts", 8),
        Key("moe_topk", "mlp.active", 2),
        SharedExperts("moe_num_shared_experts", 2, bias_key="mlp_bias"),
        RopeKeys(),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        Row("model.layers.{i}.mlp.router.weight", ROUTER),
        Row(f"{EXPERTS}.fc1.weight", GATE_UP, GATE_BESIDE_UP),
        Row(f"{EXPERTS}.fc2.weight", DOWN, TRANSPOSE),
        *shared_expert("model.layers.{i}.mlp.shared_experts"),
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=[
        Row(f"{EXPERTS}.gate_up_proj", GATE_UP, GATE_BESIDE_UP),
        Row(f"{EXPERTS}.down_proj", DOWN, TRANSPOSE),
    ],
    prefix="model.",
)
