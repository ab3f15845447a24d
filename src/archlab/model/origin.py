"""Where a model came from, for whoever writes it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Origin:
    """What a model's published folder says beside architecture and weights."""

    family: str | None = None
    """The family it was loaded as; None: trained here."""
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    """`bos_token_id` and the like, as its config.json has them."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Its tokenizer's files, which go along unread."""
