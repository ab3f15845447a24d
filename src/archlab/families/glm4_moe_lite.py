"""Configs and weights of GLM 4.7 Flash (Glm4MoeLiteForCausalLM in transformers): latent attention and a mixture of
experts.
"""

from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, PRE_NORMS, WIDTHS, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads, LatentRope
from archlab.hf.mixture import GroupKeys, SharedExperts, mlp_layer_types

FAMILY = Family(
    model_type="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    default_max_seq_len=202752,
    fields=[
        *WIDTHS,
        *LATENT,
        Key("q_lora_rank", "attention.q_rank", 768, nullable=True),
        Key("qk_nope_head_dim", "attention.nope_dim", 192),
        Key("v_head_dim", "attention.v_dim", 256),
        LatentHeads(kv_heads=20),
        *rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 64),
        Key("num_experts_per_tok", "mlp.active", 4),
        Key("moe_intermediate_size", "mlp.d_ff", 1536),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.8, from_hf=float),
        GroupKeys(),
        SharedExperts("n_shared_experts", 1),
        LatentRope(interleave_key="rope_interleave"),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(),
    ],
    weights=[*LATENT_WEIGHTS, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    prefix="model.",
    no_effect=UNREAD_KEYS,
    aliases={"num_local_experts": "n_routed_experts"},
)
