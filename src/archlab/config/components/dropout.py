"""Dropout: its places, and its probability at each."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from archlab.config.core.base import Probability, Settings


class Dropout(Settings):
    """Probability of dropout at each place during training. A single number sets all places."""

    embedding: Probability = 0.0
    """Probability of dropout after the embedding and its positions."""
    attention: Probability = 0.0
    """Probability of dropout on the attention weights."""
    branch: Probability = 0.0
    """Probability of dropout on the output of every branch, before it is added to the stream."""


def _everywhere(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(Dropout.model_fields, float(value))
    return value


DropoutPlaces = Annotated[Dropout, BeforeValidator(_everywhere, json_schema_input_type=Dropout | Probability)]
"""Dropout for each place, or one number for all places."""
