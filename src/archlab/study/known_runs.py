"""List of the runs of a study, which the study writes while it runs. Other processes read it without torch, which the
names of runs depend on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from archlab.config.core.base import Base
from archlab.config.core.text import Shown, command_line
from archlab.config.identity import config_hash, resolved
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.study.arm import Arm
from archlab.study.summary_file import has_summary, read_summary

_FILE = "runs.json"
_REMEDY = "delete it, and `archlab study run` writes it again"


class NamedRun(NamedTuple):
    """Name of a run's folder, and the run's label."""

    name: str
    label: str


class KnownRuns(Base):
    """Runs of a study. Those of an arm are known when the arm has been tuned."""

    before: list[NamedRun] = Field(default_factory=list)
    """The base that the study trains, if it does, and the tuning runs."""
    compared: dict[Shown, dict[int, str]] = Field(default_factory=dict)
    """Name of each run of the comparison, by arm and seed."""
    arms: str = ""
    """Digest of the arms."""


def write_known_runs(folder: Path, runs: KnownRuns, arms: Sequence[Arm]) -> None:
    write_with_digests(folder, {_FILE: runs.model_copy(update={"arms": _digest(arms)}).model_dump_json()})


def known_runs(folder: Path, arms: Sequence[Arm]) -> KnownRuns:
    """Return the runs of a study with these arms. Without a list, they are the ended runs of its summary.

    Raise UserError if the list is damaged, or if the arms have changed since then.
    """
    file = folder / _FILE
    if not file.is_file():
        return _ended(folder)
    verify(file, _REMEDY)
    try:
        runs = KnownRuns.model_validate_json(file.read_bytes())
    except ValueError:
        raise UserError(f"{file} is damaged; {_REMEDY}") from None
    if runs.arms != _digest(arms):
        raise UserError(
            f"{folder}: its arms have changed; `{command_line('study run', str(folder))}` trains the missing runs"
        )
    return runs


def _ended(folder: Path) -> KnownRuns:
    summary = read_summary(folder) if has_summary(folder) else None
    compared = {arm.name: arm.runs for arm in summary.arms} if summary else {}
    return KnownRuns(
        compared={arm: {seed: Path(run).name for seed, run in runs.items()} for arm, runs in compared.items()}
    )


def _digest(arms: Sequence[Arm]) -> str:
    return config_hash({arm.name: _trained(resolved(arm.config)) for arm in arms})


def _trained(config: Mapping[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Return the parts of a config that decide what is trained. `train.compile` is chosen when the study runs."""
    train = {field: value for field, value in config["train"].items() if field != "compile"}
    return {"model": config["model"], "train": train}
