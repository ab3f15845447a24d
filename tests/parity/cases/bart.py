"""BART."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("bart", "default", SMALL, (
        "model.encoder.attention={n_heads: 4}", "model.attention.n_heads=2", "model.encoder.cross={n_heads: 2}",
        "model.norm.placement=pre", "model.embedding.norm=false", "model.head.bias=false", "model.mlp.activation=relu",
        "model.encoder.position={kind: none}",
    )),
    Case("bart", "scaled-padding-1", {
        **SMALL, "scale_embedding": True, "activation_function": "relu",
        "pad_token_id": 1, "bos_token_id": 0, "encoder_layers": 4,
    }, ("model.embedding.scale=1", "model.mlp.activation=gelu")),
]  # fmt: skip
