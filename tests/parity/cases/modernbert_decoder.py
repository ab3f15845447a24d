"""Decoders of ModernBERT."""

from tests.parity.cases.modernbert import IDS, SMALL
from tests.parity.tiny import Case

CASES = [
    Case("modernbert-decoder", "default", {
        **SMALL, **IDS, "num_hidden_layers": 4, "local_attention": 10, "norm_eps": 1e-2,
    }, (
        "model.norm.eps=1e-5", "model.head.transform=null", "model.layers.sliding.attention.window=6",
        "model.layers.sliding.position.theta=160000", "model.layers.first.position.theta=10000",
        "model.layers.full.attention.visibility=two_sided",
    )),
    Case("modernbert-decoder", "biases-untied", {
        **SMALL, **IDS, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
        "decoder_bias": False, "tie_word_embeddings": False, "hidden_activation": "silu",
        "classifier_activation": "relu", "local_attention": 7, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
        },
    }, ("model.mlp.activation=gelu", "model.head.transform.activation=gelu", "model.attention.out_bias=false")),
]  # fmt: skip
