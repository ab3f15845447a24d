"""mT5."""

from tests.parity.cases.t5 import BIAS, SMALL
from tests.parity.tiny import Case

CASES = [
    Case("mt5", "default", {**SMALL, "layer_norm_epsilon": 1e-2}, (
        *BIAS, "model.head.scale=0.5", "model.norm.eps=1e-6", "model.mlp.activation=gelu",
    )),
    Case("mt5", "relu", {**SMALL, "feed_forward_proj": "relu", "tie_word_embeddings": False}),
]  # fmt: skip
