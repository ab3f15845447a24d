"""MVP."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("mvp", "default", {**SMALL, "prompt_length": 3, "prompt_mid_dim": 5}, (
        "model.encoder.attention={n_heads: 4}", "model.attention.n_heads=2", "model.norm.placement=pre",
        "model.embedding.norm=false", "model.head.bias=false", "model.mlp.activation=relu",
    )),
    Case("mvp", "scaled-padding-1", {
        **SMALL, "scale_embedding": True, "activation_function": "relu", "pad_token_id": 1, "bos_token_id": 0,
    }, ("model.embedding.scale=1", "model.mlp.activation=gelu")),
]  # fmt: skip
