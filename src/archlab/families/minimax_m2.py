"""Configs and weights of MiniMax M2 (MiniMaxM2ForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.families.glm4_moe import SIGMOID
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, RMS_NORM, SIZES, kv_heads
from archlab.families.mixtral import CORRECTION, EXPERTS, FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row


class RotaryDim(RopeKeys):
    """RoPE on a part of the dimensions of each head.

    The published config.json contains the number of rotated dimensions. A config.json that transformers saves contains
    their fraction.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set RoPE. If the file contains both values, use the fraction."""
        super().read(hf, ours)
        rotary_dim = hf.get("rotary_dim", kind=int)
        nested_fraction = (hf.get("rope_parameters") or hf.get("rope_scaling") or {}).get(self.fraction_key)
        if rotary_dim and nested_fraction is None and hf.get(self.fraction_key) is None:
            ours["position"]["fraction"] = rotary_dim / ours["attention.head_dim"]


FAMILY = Family(
    model_type="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    default_max_seq_len=196608,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128),
        *RMS_NORM,
        *qk_rms_norm(1e-6),
        Always("attention.qk_norm.scope", "width"),
        *MIXTURE,
        *SIGMOID,
        Key("num_local_experts", "mlp.experts", 256),
        Key("num_experts_per_tok", "mlp.active", 8),
        RotaryDim(theta=5e6, partial=True),
        Key("tie_word_embeddings", "head.tied", False),
        # Factors for the output of branches in MiniMax's earlier models. The published code does not read them.
        *(Only(f"layernorm_{kind}_beta", 1.0, written=False) for kind in ("full_attention", "linear_attention", "mlp")),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        *EXPERTS,
        Row("model.layers.{i}.block_sparse_moe.e_score_correction_bias", CORRECTION),
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=[*FUSED_EXPERTS, Row("model.layers.{i}.mlp.e_score_correction_bias", CORRECTION)],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=TRAINING_ONLY
    | {"attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "qk_norm_type", "scoring_func"}
    | {
        "shared_intermediate_size",
        "shared_moe_mode",
        "mlp_intermediate_size",
        "use_mtp",
        "use_qk_norm",
        "use_routing_bias",
    },
    aliases={"num_experts": "num_local_experts"},
)
