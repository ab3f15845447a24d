"""Dropout: the places where it is applied, and the probability at each place."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from archlab.config.core.base import Probability, Settings


class Dropout(Settings):
    """Dropout probability at each place during training. A single number is the probability at all places."""

    embedding: Probability = 0.0
    """Dropout probability of the input of the first layer: the token embedding plus any position embedding."""
    attention: Probability = 0.0
    """Dropout probability of the attention weights."""
    branch: Probability = 0.0
    """Dropout probability of the output of every branch, before it is added to the residual stream."""


def _everywhere(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(Dropout.model_fields, float(value))
    return value


DropoutPlaces = Annotated[Dropout, BeforeValidator(_everywhere, json_schema_input_type=Dropout | Probability)]
"""Dropout probability at each place, or one number for all places."""
