"""Reading of imported.json, a file in a run folder that describes the published weights from which the run started."""

from pathlib import Path
from typing import Any

from archlab.config.core.base import Base
from archlab.digests import verify
from archlab.errors import UserError

IMPORTED = "imported.json"


class Imported(Base):
    """Facts about the published weights that a run starts from."""

    family: str
    special_ids: dict[str, Any]
    """Values of `bos_token_id` and the other special token ids in config.json."""
    dtype: str | None
    """Dtype of the published weights. null if the weights do not all have the same dtype."""
    source: str | None = None
    """Full path of the published model's folder, or its hub id with the commit. null if the file was written by an
    archlab version without this field."""


def imported(run: Path) -> Imported | None:
    """Return facts about the published weights that a run started from, or None if it started from random weights."""
    path = run / IMPORTED
    if not path.is_file():
        return None
    verify(path, "import the model again")
    try:
        return Imported.model_validate_json(path.read_text())
    except ValueError:
        raise UserError(f"{path}: damaged; import the model again") from None
