"""Qwen 2, mixtures of experts."""

from tests.parity.tiny import SMALL, Case

MOE = {
    **SMALL, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip

CASES = [
    Case("qwen2_moe", "windows-dense", {
        **MOE, "num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3,
        "mlp_only_layers": [2], "norm_topk_prob": True,
    }, (
        "model.layers.sliding.attention.window=8", "model.mlp.router.normalise=false", "model.mlp.shared.gate=false",
        "model.mlp.active=2", "model.attention.qkv_bias=false",
    )),
    Case("qwen2_moe", "every-second", {
        **MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "qkv_bias": False, "tie_word_embeddings": True,
    }, ("model.mlp.router.normalise=true", "model.mlp.shared.gate=false")),
    Case("qwen2_moe", "all-dense", {**MOE, "decoder_sparse_step": 9}, ("model.attention.qkv_bias=false",)),
]  # fmt: skip
