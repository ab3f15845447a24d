"""Reading the result of a study."""

from pathlib import Path

from archlab.errors import UserError
from archlab.study.record import StudySummary


def load_study(folder: str | Path) -> StudySummary:
    """What `archlab study run` found and wrote into its folder; UserError where there is nothing, or damaged."""
    file = Path(folder) / "summary.json"
    if not file.is_file():
        raise UserError(f"{file}: missing; `archlab study run` writes it when all runs have ended")
    try:
        return StudySummary.model_validate_json(file.read_bytes())
    except ValueError:
        hint = f"`archlab study report {folder}` writes it again"
        raise UserError(f"{file}: damaged, or written by another version of archlab; {hint}") from None
