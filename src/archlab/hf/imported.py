"""imported.json: what a run folder keeps of the published weights with which the run began."""

from pathlib import Path
from typing import Any

from archlab.config.core.base import Base
from archlab.digests import verify
from archlab.errors import UserError

IMPORTED = "imported.json"


class Imported(Base):
    """What is known of the published weights with which a run begins."""

    family: str
    special_ids: dict[str, Any]
    """`bos_token_id` and the like, as in config.json."""
    dtype: str | None
    """The published number format; null when it was mixed."""
    source: str | None = None
    """The full path of the published model's folder, or its hub id with the commit. null: made before this was kept."""


def imported(run: Path) -> Imported | None:
    """The published weights with which a run began; None where it began with random ones."""
    path = run / IMPORTED
    if not path.is_file():
        return None
    verify(path, "import the model again")
    try:
        return Imported.model_validate_json(path.read_text())
    except ValueError:
        raise UserError(f"{path}: damaged; import the model again") from None
