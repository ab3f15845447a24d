"""imported.json: facts about the published weights that a run started from, kept in the run folder."""

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
    """`bos_token_id` and the like, as in config.json."""
    dtype: str | None
    """Published dtype. null: the weights have several dtypes."""
    source: str | None = None
    """Full path of the published model's folder, or its hub id with the commit. null: written by an older archlab."""


def imported(run: Path) -> Imported | None:
    """Return facts about the published weights that a run started from. None if it started from random weights."""
    path = run / IMPORTED
    if not path.is_file():
        return None
    verify(path, "import the model again")
    try:
        return Imported.model_validate_json(path.read_text())
    except ValueError:
        raise UserError(f"{path}: damaged; import the model again") from None
