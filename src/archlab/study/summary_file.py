"""Files of a study's result: `summary.json`, which is the only file that reports read, and `runs.csv`."""

import csv
import io
import json
from pathlib import Path

from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.study.record import StudySummary
from archlab.study.study_file import check_study_folder

_FILE = "summary.json"
_RUNS = "runs.csv"


def load_study(folder: str | Path) -> StudySummary:
    """Return the summary that `archlab study run` wrote into a folder. Raise UserError if it cannot be read.

    >>> study = archlab.load_study("studies/a")
    >>> [(row["arm"], row["seed"]) for row in study.frame()]
    [('silu', 0), ('silu', 1), ('gelu', 0), ('gelu', 1)]
    """
    check_study_folder(Path(folder))
    if not has_summary(Path(folder)):
        raise UserError(f"{Path(folder) / _FILE} is missing; `archlab study run` writes it when all runs have ended")
    return read_summary(Path(folder))


def has_summary(folder: Path) -> bool:
    return (folder / _FILE).is_file()


def kept_name(folder: Path) -> str | None:
    """Return the name of the study in a folder's summary, even if the folder was renamed. Return None if there is no
    summary. Raise UserError if the summary is damaged."""
    return read_summary(folder).name if has_summary(folder) else None


def write_summary(folder: Path, summary: StudySummary) -> None:
    """Write the summary and the table of runs into a study's folder, replacing older versions."""
    # json can write and read the name of a file that is not UTF-8. pydantic cannot.
    text = json.dumps(summary.model_dump(mode="json"), indent=2)
    write_with_digests(folder, {_RUNS: csv_of_runs(summary), _FILE: text})


def csv_of_runs(summary: StudySummary) -> str:
    """Return `StudySummary.frame` as CSV with a header. None becomes an empty cell."""
    rows, buffer = summary.frame(), io.StringIO()
    table = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return buffer.getvalue()


def read_summary(folder: Path) -> StudySummary:
    """Read the summary in a study's folder. Raise UserError if the summary is damaged."""
    file = folder / _FILE
    remedy = "delete it, and `archlab study report` writes it again from the runs"
    verify(file, remedy)
    try:
        return StudySummary.model_validate(json.loads(file.read_bytes()), strict=False)  # lists become tuples
    except ValueError:
        raise UserError(f"{file} is damaged, or another version of archlab wrote it; {remedy}") from None
