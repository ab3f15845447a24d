"""CodeGen."""

from tests.parity.cases.gptj import SMALL
from tests.parity.tiny import Case

CASES = [
    Case("codegen", "default", {**SMALL, "n_ctx": 64}, ("model.position.pairing=half", "model.mlp.activation=gelu")),
    Case("codegen", "eight-heads-tied", {
        **SMALL, "n_embd": 64, "n_head": 8, "rotary_dim": 6, "n_inner": 48, "activation_function": "relu",
        "tie_word_embeddings": True, "n_ctx": 64,
    }, ("model.head.bias=false",)),
]  # fmt: skip
