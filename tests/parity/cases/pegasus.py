"""PEGASUS."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("pegasus", "default", SMALL, (
        "model.position.offset=1", "model.encoder.position={offset: 1}", "model.position.layout=interleaved",
        "model.norm.placement=post", "model.embedding.norm=sum", "model.head.bias=false", "model.mlp.activation=relu",
    )),
    Case("pegasus", "scaled", {
        **SMALL, "scale_embedding": True, "activation_function": "relu",
    }, ("model.embedding.scale=1", "model.mlp.activation=gelu")),
]  # fmt: skip
