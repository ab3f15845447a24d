"""Dropout: where activations are dropped, and how often."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from archlab.config.core.base import Probability, Settings


class Dropout(Settings):
    """Where activations are dropped in training; a single number sets all of them."""

    embedding: Probability = 0.0
    """After the embedding and its positions."""
    attention: Probability = 0.0
    """On the attention weights."""
    branch: Probability = 0.0
    """On the output of every branch, before the addition."""


def _everywhere(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(Dropout.model_fields, float(value))
    return value


DropoutPlaces = Annotated[Dropout, BeforeValidator(_everywhere, json_schema_input_type=Dropout | Probability)]
"""Dropout by place, or one number for all."""
