"""MiniCPM 3."""

from tests.parity.cases.youtu import LATENT
from tests.parity.tiny import Case

CASES = [
    Case("minicpm3", "yarn, biases, untied", {
        **LATENT, "q_lora_rank": 14, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2,
        "tie_word_embeddings": False, "hidden_act": "gelu", "scale_emb": 2.7, "scale_depth": 0.9, "dim_model_base": 12,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 0.6, "mscale_all_dim": 1.2,
        },
    }, (
        "model.attention.scale=null", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.mlp.bias=false", "model.norm.eps=1e-5",
        "model.position.pairing=interleaved", "model.position.scaling.attention_factor=null",
        "model.position.scaling.kind=none", "model.mlp.activation=silu",
        "model.embedding={scale: 1, round_scale: false}", "model.block.attention_multiplier=1.0",
        "model.block.mlp_multiplier=1.0", "model.head.scale=1.0",
    )),
    Case("minicpm3", "without multipliers, queries of the stream", {
        **{key: value for key, value in LATENT.items() if key != "v_head_dim"}, "q_lora_rank": None,
        "qk_nope_head_dim": 4, "scale_emb": 1, "scale_depth": None, "dim_model_base": None,
    }, ("model.block.mlp_multiplier=0.8", "model.position.theta=100.0")),
]  # fmt: skip
