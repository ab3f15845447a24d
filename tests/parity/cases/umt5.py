"""umT5."""

from tests.parity.cases.t5 import BIAS, SMALL
from tests.parity.tiny import Case

CASES = [
    Case("umt5", "default", {**SMALL, "layer_norm_epsilon": 1e-2}, (
        *BIAS, "model.position.shared=true", "model.encoder.position={shared: true}", "model.head.scale=1",
        "model.norm.eps=1e-6", "model.mlp.activation=gelu",
    )),
    Case("umt5", "relu", {**SMALL, "feed_forward_proj": "relu", "tie_word_embeddings": False}, (
        "model.head.scale=1",
    )),
]  # fmt: skip
