"""Configs and weights of the dense Hunyuan models (HunYuanDenseV1ForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.families.llama import GATED, SIZES, WEIGHTS, attention_biases, rms_norm
from archlab.families.qwen3 import qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.rope import RopeKeys, refuse_flags, rope_fields
from archlab.hf.weight_map import linear


class AlphaRope(RopeKeys):
    """RoPE with Hunyuan's scaling: `dynamic` with an `alpha`. It multiplies theta by alpha^(d / (d - 2)).

    d is the number of rotated dimensions. The published code ignores `factor` and the other values in this scaling.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        scaling = hf.get("rope_scaling") or hf.get("rope_parameters", {})
        if scaling.get("rope_type", scaling.get("type")) != "dynamic" or not scaling.get("alpha"):
            super().read(hf, ours)
            return
        refuse_flags(hf, scaling)
        rotary_dim = ours["attention.head_dim"] or ours["d_model"] // ours["attention.n_heads"]
        theta, exponent = scaling.get("rope_theta", hf.get(self.theta_key, self.theta)), rotary_dim / (rotary_dim - 2)
        ours["position"] = rope_fields(hf, theta * scaling["alpha"] ** exponent, 1.0, self.pairing, {}, None)


QK_NORMS = [
    *linear("model.layers.{i}.self_attn.query_layernorm", "layers.{i}.attention.q_norm.norm"),
    *linear("model.layers.{i}.self_attn.key_layernorm", "layers.{i}.attention.k_norm.norm"),
]

FAMILY = Family(
    model_type="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        *GATED,
        AlphaRope(),
        Always("position.order", "before_qk_norm"),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        Only("use_qk_norm", True),
        Only("use_cla", False),
        Only("mlp_bias", False, written=False),
        Only("norm_type", "rms", written=False),
        Only("num_experts", 1, written=False),
        Only("use_rotary_pos_emb", True, written=False),
    ],
    weights=[*WEIGHTS, *QK_NORMS],
    prefix="model.",
    # These keys come from other Hunyuan models. The published class reads none of them.
    no_effect=frozenset({
        "add_classification_head", "attention_head_dim", "cla_share_factor", "class_num", "dense_list", "eod_token_id",
        "enable_lm_head_fp32", "im_end_id", "im_newline_id", "im_start_id", "image_token_id", "mask_init_id",
        "num_media_embeds", "num_shared_expert", "org_vocab_size", "pad_id",
        "pool_type", "position_embedding_xdrope", "sep_token_id", "text_end_id", "text_start_id",
        "video_end_id", "video_start_id",
    }),
)  # fmt: skip
