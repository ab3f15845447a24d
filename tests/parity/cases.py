"""Tiny checkpoints of every family, made by transformers with every parameter drawn anew."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Keys that most families share."""


@dataclass(frozen=True)
class Case:
    """One config of one family, and overrides of ours that the comparison must notice."""

    model_type: str
    name: str
    hf: dict[str, Any]
    breaks: tuple[str, ...] = ()
    """Overrides of our config, each of which must open a visible gap: the family's odd things, undone."""
    attention: str = "eager"
    note: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("llama", "gqa", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}, ("model.norm.eps=1e-6", "model.position.pairing=interleaved")),
    Case("llama", "biases-llama3", {
        **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }, ("model.position.scaling=none",)),
    Case("gpt2", "default", {
        "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-3,
        "bos_token_id": 1, "eos_token_id": 2,
    }, ("model.mlp.activation=gelu",)),
]  # fmt: skip


def tiny_model(case: Case) -> nn.Module:
    """The transformers model of a case, in float32, every parameter (norms and biases too) drawn anew."""
    config = transformers.CONFIG_MAPPING[case.model_type](**case.hf, attn_implementation=case.attention)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=case.attention).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(0, 1, generator=generator)
            # Matrices keep activations near 1; vectors (norms, biases) move visibly around where they stand.
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else parameter + 0.3 * noise)
    return model
