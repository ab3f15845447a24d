"""T5."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip

BIAS = (
    "model.position.max_distance=30", "model.encoder.position={max_distance: 30}", "model.encoder.attention={scale: 0.5}",
    "model.encoder.cross={scale: 0.5}",
)  # fmt: skip
"""Overrides that change the position bias of one stack, or the scale of the scores in one place."""

CASES = [
    Case("t5", "default", {**SMALL, "layer_norm_epsilon": 1e-2}, (
        *BIAS, "model.attention.scale=0.5", "model.norm.eps=1e-6", "model.encoder.norm={eps: 1e-6}",
        "model.head.scale=1", "model.mlp.activation=gelu_tanh",
    )),
    # version 1.1 and FLAN-T5
    Case("t5", "gated-untied", {
        **SMALL, "num_decoder_layers": None, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    }, ("model.head.scale=0.5", "model.mlp.activation=gelu", "model.encoder.mlp={activation: gelu}")),
    Case("t5", "gated-silu-one-layer", {**SMALL, "num_layers": 1, "feed_forward_proj": "gated-silu"}),
]  # fmt: skip
