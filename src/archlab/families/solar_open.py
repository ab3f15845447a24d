"""Configs and weights of Solar Open (SolarOpenForCausalLM in transformers): the attention of Llama and the mixture of
experts of GLM 4.5 in all layers.
"""

from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, WIDTHS, kv_heads, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE
from archlab.hf.family import Family
from archlab.hf.fields import Key, Only
from archlab.hf.mixture import GroupKeys, SharedExperts
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="solar_open",
    architecture="SolarOpenForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *(part for part in WIDTHS if part.hf_key != "intermediate_size"),
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128),
        *rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 128),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 1280),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        GroupKeys(),
        SharedExperts("n_shared_experts", 1),
        RopeKeys(theta=1e6),
        Key("attention_bias", "attention.qkv_bias", False),
        Key("tie_word_embeddings", "head.tied", False),
        # a key of the published file that the published code does not read
        Only("first_k_dense_replace", 0, "0, because no layer has a dense MLP", written=False),
    ],
    weights=[*ATTENTION, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    prefix="model.",
    no_effect=UNREAD_KEYS | {"intermediate_size"},  # no layer has a dense MLP
    aliases={"num_local_experts": "n_routed_experts"},
)
