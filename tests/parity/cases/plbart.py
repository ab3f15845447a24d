"""PLBART."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("plbart", "default", SMALL, (
        "model.encoder.attention={n_heads: 4}", "model.attention.n_heads=2", "model.norm.placement=pre",
        "model.embedding.norm=false", "model.embedding.scale=1", "model.head.bias=false", "model.mlp.activation=relu",
    )),
    Case("plbart", "unscaled-padding-1", {
        **SMALL, "scale_embedding": False, "activation_function": "relu", "pad_token_id": 1, "bos_token_id": 0,
    }, ("model.embedding.scale=sqrt_d_model", "model.mlp.activation=gelu")),
]  # fmt: skip
