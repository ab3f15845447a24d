"""Text models of Llama 4."""

from tests.parity.tiny import SMALL, Case

MOE = {**SMALL, "intermediate_size": 24, "intermediate_size_mlp": 40, "num_local_experts": 5, "head_dim": 8}

CASES = [
    Case("llama4_text", "chunks", {
        **MOE, "num_hidden_layers": 4, "num_experts_per_tok": 2, "head_dim": 12, "rms_norm_eps": 1e-2,
        "no_rope_layer_interval": 2, "attention_chunk_size": 6, "floor_scale": 7, "attn_scale": 0.5,
        "interleave_moe_layer_step": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }, (
        "model.mlp.active=1", "model.mlp.router.applied_to=output", "model.mlp.router.normalise=true",
        "model.mlp.router.score=softmax", "model.mlp.shared=null", "model.norm.eps=1e-5",
        "model.position.pairing=half", "model.layers.rope_chunks_dense.attention.blocks.size=7",
        "model.layers.rope_chunks_dense.attention.qk_norm=none",
        "model.layers.rope_chunks_dense.attention.qk_norm.eps=1e-5",
        "model.layers.nope_dense.attention.temperature=null",
        "model.layers.nope_dense.attention.temperature.offset=0",
        "model.layers.nope_dense.position=rope", "model.layers.nope_dense.attention.qk_norm.kind=rmsnorm",
    )),
    Case("llama4_text", "four-kinds", {
        **MOE, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0, 1], "moe_layers": [1, 2],
        "layer_types": ["chunked_attention", "chunked_attention", "full_attention", "full_attention"],
        "attention_chunk_size": 9, "use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True,
        "tie_word_embeddings": True,
    }, (
        "model.attention.out_bias=false", "model.position.theta=1e4", "model.mlp.router.applied_to=output",
        "model.layers.nope_chunks.attention.blocks=null", "model.layers.rope.attention.qk_norm.kind=rmsnorm",
    )),
    Case("llama4_text", "yarn", {
        **MOE, "no_rope_layers": [1, 1, 1], "num_key_value_heads": 1, "hidden_act": "gelu",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    }, (
        "model.position.order=after_qk_norm", "model.mlp.activation=silu",
        "model.position={scaling: {kind: none}, order: after_qk_norm}",
    )),
    Case("llama4_text", "dense-never-turns", {**MOE, "no_rope_layers": [0, 0, 0], "moe_layers": [], "floor_scale": 3}, (
        "model.attention.temperature.beta=0.2", "model.attention.temperature.length=4", "model.position=rope",
    )),
]  # fmt: skip
