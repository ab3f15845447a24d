"""GPT-NeoX."""

from tests.parity.tiny import Case

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "layer_norm_eps": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES = [
    Case("gpt_neox", "parallel", SMALL, (
        "model.position.fraction=1.0", "model.block.parallel=none", "model.mlp.activation=gelu_tanh",
        "model.norm.eps=1e-5",
    )),
    Case("gpt_neox", "serial-tied", {
        **SMALL, "use_parallel_residual": False, "hidden_act": "gelu_new", "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0, "partial_rotary_factor": 0.75},
    }, ("model.position.scaling=none", "model.position.fraction=0.5")),
    Case("gpt_neox", "dynamic-no-bias", {
        **SMALL, "attention_bias": False, "max_position_embeddings": 36,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }, ("model.position.scaling=none",)),
    Case("gpt_neox", "yarn-full", {
        **SMALL, "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": 16,
        },
    }, ("model.position.scaling=none",)),
]  # fmt: skip
