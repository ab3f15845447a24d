"""Configs and weights of K-EXAONE (ExaoneMoeForCausalLM in transformers): the attention of EXAONE 4 with norms before
the branches, and the mixture of experts of DeepSeek V3.
"""

from archlab.config.core.merge import Raw
from archlab.families.deepseek_v3 import UNREAD_KEYS
from archlab.families.exaone4 import by_pattern
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import LayerTypes
from archlab.hf.mixture import GroupKeys, SharedExperts, mlp_layer_types
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row


def by_pattern_with_window(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types, as in EXAONE 4. Raise UserError if `sliding_window` is null, because the published class
    refuses it."""
    if hf.or_null("sliding_window", 4096) is None:
        raise hf.refuse("sliding_window", None, "a number")
    return by_pattern(hf, n_layers)


def repeated(hf: ConfigReader, layers: list[Raw]) -> Raw:
    """Return the right values of the keys that older files have instead of `mlp_layer_types` and
    `first_k_dense_replace`."""
    sparse = [layer["mlp.kind"] == "moe" for layer in layers]
    return {"is_moe_layer": sparse, "first_last_k_dense_replace": [*sparse, True].index(True)}


FAMILY = Family(
    model_type="exaone_moe",
    architecture="ExaoneMoeForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        kv_heads(32),
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("num_experts", "mlp.experts", 64),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 1024),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 2.5, from_hf=float),
        GroupKeys(),
        SharedExperts("num_shared_experts", 1),
        RopeKeys(),
        LayerTypes(by_pattern_with_window, full={"position": {"kind": "none"}}, unused=4096),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(reads_first=True),
        RepeatedKeys(repeated),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        *(row for row in EXPERTS if row.ours != CORRECTION),
        Row("model.layers.{i}.mlp.e_score_correction_bias", CORRECTION),
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=[*FUSED_EXPERTS, Row("model.layers.{i}.mlp.gate.e_score_correction_bias", CORRECTION)],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=UNREAD_KEYS | {"mtp_share_layers", "mtp_loss_scaling_factor"},
)
