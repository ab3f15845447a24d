"""Marian."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("marian", "scaled-swish", {
        **SMALL, "vocab_size": 62, "pad_token_id": 61, "decoder_start_token_id": 61, "scale_embedding": True,
        "activation_function": "swish",
    }, (
        "model.position.offset=1", "model.encoder.position={offset: 1}", "model.position.layout=interleaved",
        "model.norm.placement=pre", "model.embedding.norm=sum", "model.head.bias=false", "model.embedding.scale=1",
        "model.mlp.activation=gelu",
    )),
    Case("marian", "unscaled", SMALL, ("model.mlp.activation=gelu_tanh",)),
]  # fmt: skip
