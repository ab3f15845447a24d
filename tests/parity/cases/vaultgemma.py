"""VaultGemma."""

from tests.parity.tiny import SMALL, Case

CASES = [
    Case("vaultgemma", "caps, windows", {
        **SMALL, "num_hidden_layers": 4, "head_dim": 12, "rms_norm_eps": 1e-2, "query_pre_attn_scalar": 5,
        "sliding_window": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }, (
        "model.norm.eps=1e-6", "model.norm.unit_offset=false", "model.norm.placement=double",
        "model.embedding={scale: 1, round_scale: false}", "model.attention.scale=null", "model.attention.softcap=null",
        "model.head.softcap=null", "model.layers.sliding.attention.window=8", "model.position.scaling=none",
        "model.mlp.activation=silu",
    )),
    Case("vaultgemma", "no caps, biases, untied", {
        **SMALL, "head_dim": 8, "sliding_window": 7,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
        "tie_word_embeddings": False, "hidden_activation": "silu",
    }, (
        "model.attention.qkv_bias=false", "model.attention.out_bias=false", "model.mlp.activation=gelu_tanh",
        "model.attention.softcap=2.0",
    )),
    Case("vaultgemma", "no window", {
        **SMALL, "head_dim": 8, "sliding_window": 7, "layer_types": ["full_attention"] * 3,
    }, ("model.attention.window=7",)),
]  # fmt: skip
