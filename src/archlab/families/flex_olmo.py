"""Configs and weights of FlexOlmo (FlexOlmoForCausalLM in transformers): OLMo 2 with a mixture of experts."""

from archlab.families.llama import AROUND, ATTENTION, SIZES, attention_biases
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.olmo2 import NORMS, OUTPUT_NORMS
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.mixture import each_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

FAMILY = Family(
    model_type="flex_olmo",
    architecture="FlexOlmoForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        *NORMS,
        Key("rms_norm_eps", "norm.eps", 1e-6),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        *MIXTURE,
        Key("num_experts", "mlp.experts", 7),
        Key("num_experts_per_tok", "mlp.active", 5),
        Key("norm_topk_prob", "mlp.router.normalise", False),
        RopeKeys(theta=5e5),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        Row("model.layers.{i}.mlp.gate.weight", ROUTER),
        *each_expert("model.layers.{i}.mlp.experts"),
        *OUTPUT_NORMS,
        *AROUND,
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_local_experts": "num_experts"},
)
