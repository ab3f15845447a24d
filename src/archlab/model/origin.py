"""Origin of a loaded model, kept for saving it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Origin:
    """Contents of a model's published folder besides architecture and weights."""

    family: str | None = None
    """Name of the family of the loaded model; None: trained here."""
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    """Special token ids of its config.json, such as `bos_token_id`."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files of its tokenizer; they are copied without being read."""
