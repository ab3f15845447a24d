"""GPT-Neo."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64,
    "layer_norm_epsilon": 1e-3, "attention_types": [[["global", "local"], 2]], "window_size": 9,
    "intermediate_size": 48, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("gpt_neo", "alternating", SMALL, (
        "model.attention.scale=null", "model.layers=null", "model.layers.local.attention.window=10",
        "model.mlp.activation=gelu", "model.norm.eps=1e-5",
    )),
    Case("gpt_neo", "local-untied", {
        **SMALL, "attention_types": [[["local"], 4]], "intermediate_size": None, "activation_function": "silu",
        "tie_word_embeddings": False,
    }, ("model.attention.window=null",)),
    Case("gpt_neo", "global-first", {**SMALL, "attention_types": [[["global"], 2], [["local", "global"], 1]]}, (
        "model.layers.pattern=[global, local]",
    )),
    Case("gpt_neo", "global", {**SMALL, "attention_types": [[["global"], 4]]}, ("model.attention.window=9",)),
]  # fmt: skip
