"""The result of a study in its folder: `summary.json`."""

import json
from pathlib import Path

from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.study.record import StudySummary

_FILE = "summary.json"


def load_study(folder: str | Path) -> StudySummary:
    """What `archlab study run` found and wrote into its folder; UserError where there is nothing, or damaged."""
    if not has_result(Path(folder)):
        raise UserError(f"{Path(folder) / _FILE}: missing; `archlab study run` writes it when all runs have ended")
    return read_result(Path(folder))


def has_result(folder: Path) -> bool:
    """Whether it has been written."""
    return (folder / _FILE).is_file()


def write_result(folder: Path, summary: StudySummary) -> None:
    """Over an older one, if there is one; a file's name may hold bytes that are no UTF-8, which json can write."""
    write_with_digests(folder, {_FILE: json.dumps(summary.model_dump(mode="json"), indent=2)})


def read_result(folder: Path) -> StudySummary:
    """As it was written; UserError for damage."""
    file = folder / _FILE
    remedy = "remove it, and `archlab study report` writes it again from the runs"
    verify(file, remedy)
    try:
        return StudySummary.model_validate_json(file.read_bytes())
    except ValueError:
        raise UserError(f"{file}: damaged, or written by another version of archlab; {remedy}") from None
