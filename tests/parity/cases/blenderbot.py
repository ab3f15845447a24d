"""Blenderbot."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("blenderbot", "default", SMALL, (
        "model.encoder.attention={n_heads: 4}", "model.attention.n_heads=2", "model.norm.placement=post",
        "model.position={kind: sinusoidal, layout: halves}", "model.head.bias=false", "model.mlp.activation=relu",
    )),
    Case("blenderbot", "scaled", {
        **SMALL, "scale_embedding": True, "activation_function": "relu",
    }, ("model.embedding.scale=1", "model.mlp.activation=gelu")),
]  # fmt: skip
