"""M2M-100."""

from tests.parity.cases.bart import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("m2m_100", "padding-1", {**SMALL, "pad_token_id": 1, "bos_token_id": 0}, (
        "model.position.offset=0", "model.encoder.position={offset: 0}", "model.position.theta=10000",
        "model.position.layout=interleaved", "model.embedding.scale=1", "model.norm.placement=post",
        "model.mlp.activation=gelu",
    )),
    Case("m2m_100", "padding-2-unscaled", {
        **SMALL, "pad_token_id": 2, "eos_token_id": 0, "scale_embedding": False,
        "activation_function": "gelu",
    }, ("model.position.offset=2", "model.mlp.activation=gelu_tanh")),
]  # fmt: skip
