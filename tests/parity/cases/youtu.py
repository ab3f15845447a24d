"""Youtu-LLM."""

from tests.parity.tiny import SMALL, Case

LATENT = {
    **SMALL, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}  # fmt: skip

CASES = [
    Case("youtu", "yarn, biases, untied", {
        **LATENT, "q_lora_rank": 14, "attention_bias": True, "rms_norm_eps": 1e-2, "tie_word_embeddings": False,
        "hidden_act": "gelu",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 0.6, "mscale_all_dim": 1.2,
        },
    }, (
        "model.attention.scale=null", "model.attention.norm_eps=1e-2", "model.attention.qkv_bias=false",
        "model.attention.out_bias=false", "model.norm.eps=1e-6", "model.position.pairing=half",
        "model.position.scaling.attention_factor=null", "model.position.scaling.kind=none", "model.mlp.activation=silu",
    )),
    # transformers sets the embedding of the padding token to 0 whenever it loads a model of this family.
    Case("youtu", "halves, queries of the stream", {
        **LATENT, "q_lora_rank": None, "rope_interleave": False, "pad_token_id": None,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, ("model.position.pairing=interleaved", "model.position.scaling=none")),
]  # fmt: skip
