"""Tiny checkpoints of every family, made by transformers with random parameters."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from archlab.config.model_schema import ModelConfig
from archlab.families.registry import FAMILIES
from tests.reference import grok_1  # noqa: F401 - makes grok-1 known to transformers

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Keys that most families share."""


def auto_class(model_type: str) -> Any:
    """Return the class of transformers that loads models of this family with the head that archlab has."""
    family = FAMILIES[model_type]
    if family.has_encoder:
        return transformers.AutoModelForSeq2SeqLM
    masked = family.architecture.endswith("ForMaskedLM")
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def published_class(model_type: str) -> Any:
    """Return the class of the published models of this family."""
    return auto_class(model_type)._model_mapping[transformers.CONFIG_MAPPING[model_type]]


TOKENS = torch.randint(3, 61, (2, 40), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randint(3, 61, (2, 50), generator=torch.Generator().manual_seed(2))
"""Source text of models with an encoder. It is longer than TOKENS."""


def run_published(model: Any, tokens: Tensor, source: Tensor = SOURCE, **named: Any) -> Any:
    """Return the output of a transformers model for the tokens. A model with an encoder also reads the source."""
    if model.config.is_encoder_decoder:
        return model(source, decoder_input_ids=tokens, **named)
    return model(tokens, **named)


def source_of(model: ModelConfig, source: Tensor = SOURCE) -> dict[str, Tensor]:
    """Return the argument with the source text for archlab's model, if the model has an encoder."""
    return {"source": source} if model.encoder else {}


@dataclass(frozen=True)
class Case:
    """One config of one family, and overrides of archlab's config that the comparison must notice."""

    model_type: str
    name: str
    hf: dict[str, Any]
    breaks: tuple[str, ...] = ()
    """Overrides of archlab's config that undo peculiarities of the family. Each must change the logits visibly."""
    attention: str = "eager"
    cached: bool = True
    """Whether to test transformers' cache. With dynamic NTK it differs from the full pass by design."""
    note: dict[str, Any] = field(default_factory=dict)


def tiny_model(case: Case) -> nn.Module:
    """Return the transformers model of a case in float32. All parameters, including norms and biases, are random."""
    torch.manual_seed(0)  # vectors stay close to their initial value, which is random in some classes
    config = transformers.CONFIG_MAPPING[case.model_type](**case.hf, attn_implementation=case.attention)
    model = auto_class(case.model_type).from_config(config, attn_implementation=case.attention).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("embed_positions.weight") and not parameter.requires_grad:  # a fixed table of sines
                continue
            noise = torch.empty(parameter.shape).normal_(0, 1, generator=generator)
            # Matrices keep activations near 1. Vectors (norms, biases) differ visibly from their initial value.
            initial = (
                torch.zeros_like(parameter) if name.endswith("A_log") else parameter
            )  # otherwise decay is too fast
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else initial + 0.3 * noise)
        for name, buffer in model.named_buffers():
            # a router's correction and the bias of the logits, which are 0 initially
            if name.endswith(("e_score_correction_bias", "expert_bias", "final_logits_bias")):
                buffer.normal_(0, 0.1, generator=generator)
            if name.endswith("layer_scalar"):  # 1 initially
                buffer.normal_(1, 0.3, generator=generator)
    return model
