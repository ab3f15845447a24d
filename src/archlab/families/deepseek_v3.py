"""Configs and weights of DeepSeek V3 and R1, Moonlight, Kimi K2 (DeepseekV3ForCausalLM in transformers): latent
attention and a mixture of experts, trained without a balance loss.
"""

from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, PRE_NORMS, RMS_NORM, WIDTHS
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Flag, Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads, LatentRope
from archlab.hf.mixture import GroupKeys, SharedExperts, first_dense

UNREAD_KEYS = TRAINING_ONLY | {
    "qk_head_dim", "scoring_func", "topk_method", "aux_loss_alpha", "seq_aux", "moe_layer_freq", "ep_size",
    "num_nextn_predict_layers", "num_mtp_layers",
}  # fmt: skip
"""Keys that the published code of DeepSeek V3 and of similar mixtures does not read, or reads only in training."""

ROUTED = [
    Key("num_experts_per_tok", "mlp.active", 8),
    Key("moe_intermediate_size", "mlp.d_ff", 2048),
    Flag("norm_topk_prob", "mlp.router.normalise", True),
    Key("routed_scaling_factor", "mlp.router.factor", 2.5, from_hf=float),
    GroupKeys(8, 4),
    SharedExperts("n_shared_experts", 1),
    LatentRope(interleave_key="rope_interleave"),
    Key("tie_word_embeddings", "head.tied", False),
]
"""Keys of the experts of DeepSeek V3, except their number, and those of its positions and head."""

FAMILY = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *WIDTHS,
        *LATENT,
        LatentHeads(kv_heads=128),
        *RMS_NORM,
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 256),
        *ROUTED,
        first_dense(3),
    ],
    weights=[*LATENT_WEIGHTS, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    other_model_types=("kimi_k2",),
    prefix="model.",
    no_effect=UNREAD_KEYS,
    aliases={"num_local_experts": "n_routed_experts"},
)
