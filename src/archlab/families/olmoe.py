"""Configs and weights of OLMoE (OlmoeForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, WIDTHS, attention_biases, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Only
from archlab.hf.mixture import each_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

FAMILY = Family(
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *WIDTHS,
        Key("num_key_value_heads", "attention.n_kv_heads", None),
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        Always("attention.qk_norm.scope", "width"),
        *MIXTURE,
        Key("num_experts", "mlp.experts", 64),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("norm_topk_prob", "mlp.router.normalise", False),
        RopeKeys(),
        *attention_biases(),
        Only("clip_qkv", None, "null, because the published code clips after the norm of queries and keys"),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        Row("model.layers.{i}.mlp.gate.weight", ROUTER),
        *each_expert("model.layers.{i}.mlp.experts"),
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_local_experts": "num_experts"},
)
