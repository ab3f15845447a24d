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
    cached: bool = True
    """Whether transformers generates with its cache; dynamic NTK then differs from the full pass by design."""
    note: dict[str, Any] = field(default_factory=dict)


def tiny_model(case: Case) -> nn.Module:
    """The transformers model of a case, in float32, every parameter (norms and biases too) drawn anew."""
    torch.manual_seed(0)  # vectors move around where they stand, which some classes draw
    config = transformers.CONFIG_MAPPING[case.model_type](**case.hf, attn_implementation=case.attention)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=case.attention).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty(parameter.shape).normal_(0, 1, generator=generator)
            # Matrices keep activations near 1; vectors (norms, biases) move visibly around where they stand.
            stands = torch.zeros_like(parameter) if name.endswith("A_log") else parameter  # else states forget at once
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else stands + 0.3 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # a router's, which begins at 0
                buffer.normal_(0, 0.1, generator=generator)
    return model
