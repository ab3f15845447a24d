"""Origin of a loaded model. It is needed to save the model in the published format again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Origin:
    """Contents of a published model's folder, except architecture and weights."""

    family: str | None = None
    """Name of the model family. None for a model trained with archlab."""
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    """Special token ids in the model's config.json, such as `bos_token_id`."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Tokenizer files of the model. They are copied without being read."""
    folder: Path | None = field(default=None, compare=False)
    """Folder from which the model was loaded, with its tokenizer. None for a model with new weights."""
