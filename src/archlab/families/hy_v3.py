"""Configs and weights of Hunyuan 3 (HYV3ForCausalLM in transformers): the attention of Qwen 3 and a mixture of experts
with a sigmoid router.
"""

from collections.abc import Mapping

from archlab.config.core.merge import Raw
from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.glm4_moe import SIGMOID
from archlab.families.llama import AROUND, ATTENTION, MLP, PRE_NORMS, SIZES, attention_biases, kv_heads, rms_norm
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE, ROUTER
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key, unread
from archlab.hf.mixture import SharedExperts, each_expert, mlp_layer_types, shared_expert
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row


class AtLeastOneShared(SharedExperts):
    """Key for the number of shared experts, which must not be 0."""

    @property
    def limits(self) -> Mapping[str, str]:
        return {self.hf_key: "1 or more"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the width of the shared expert. Raise UserError for 0, because the published code then builds a shared
        expert of the width `intermediate_size`."""
        if hf.get(self.hf_key, self.default) == 0:
            raise hf.refuse(self.hf_key, 0, "1 or more, because the published code builds a shared expert nevertheless")
        super().read(hf, ours)


FAMILY = Family(
    model_type="hy_v3",
    architecture="HYV3ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128),
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("num_experts", "mlp.experts", 192),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 1536),
        Key("router_scaling_factor", "mlp.router.factor", 2.826, from_hf=float),
        AtLeastOneShared("num_shared_experts", 1, bias_key="mlp_bias"),
        RopeKeys(theta=11_158_840.0),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(bias_key="mlp_bias"),
        *(
            unread(key, True)
            for key in ("qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias")
        ),
        RepeatedKeys(lambda hf, _: {"expert_hidden_dim": hf.get("moe_intermediate_size", 1536)}),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        Row("model.layers.{i}.mlp.router.gate.weight", ROUTER),
        Row("model.layers.{i}.mlp.expert_bias", CORRECTION),
        *each_expert("model.layers.{i}.mlp.experts"),
        *shared_expert("model.layers.{i}.mlp.shared_mlp"),
        *MLP,
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=[
        *FUSED_EXPERTS,
        Row("model.layers.{i}.mlp.e_score_correction_bias", CORRECTION),
        *shared_expert("model.layers.{i}.mlp.shared_experts"),
    ],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=UNREAD_KEYS | {
        # A sum of two bfloat16 numbers is rounded once, whether it is computed in bfloat16 or in float32.
        "enable_moe_fp32_combine",
        # keys about rounding, kernels and special tokens that the published code does not read
        "enable_attention_fp32_softmax", "enable_lm_head_fp32", "use_grouped_mm", "eod_token_id",
    },
    aliases={"num_local_experts": "num_experts"},
)  # fmt: skip
