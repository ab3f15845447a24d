"""A study's folder: whose it is, and what it keeps beside its runs."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from archlab.config.beside import plugins_of
from archlab.config.core.base import Base
from archlab.config.core.plugins import copies
from archlab.config.core.trust import remember
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.config.schema import Config, DataConfig
from archlab.data.open import AboutTask, AboutText, about_data, open_training_data
from archlab.data.split import n_test_folds
from archlab.digests import DIGESTS, verify, write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.files import STUDY, TEMPORARY, disk_errors, make_folder, refuse_linked_folders, remove_folder, write_atomic
from archlab.study.arm import Arm
from archlab.study.formatting import listed
from archlab.study.record import StudySummary, has_summary, read_summary
from archlab.study.schema import Seeds, StudyConfig
from archlab.study.study_file import is_study_folder, read_held
from archlab.training.code_digest import code_digest
from archlab.training.run_folder import RunFolder

_BASE = "base.yaml"
"""The base in a study's folder, where it is no preset."""
_CORPUS = "corpus.json"
_PLANNED = "planned.json"
_MATTERS = {
    "code": "code of archlab",
    "torch": "torch",
    "processor": "processor",
    "threads": "number of threads",
    "compiled": "choice to compile",
}
"""Part of a run's environment that changes rounding or speed -> what it is called."""


class CorpusRecord(Base):
    """The tokens that an arm reads: the settings that decide them, and what they were found to be."""

    data: DataConfig
    vocab_size: int
    fingerprint: str
    """16 hex digits that change with the tokens."""
    n_folds: int
    """Parts into which the text is cut."""
    description: str
    """What text it is, how many bytes and tokens it has, and how much of it is held out."""
    about: AboutText | AboutTask | None = None
    """Its name, bytes and folds; null in records of older versions."""

    @property
    def test_folds(self) -> int:
        """The first so many are for tests; no tokenizer was learned from them."""
        return n_test_folds(self.n_folds)


Corpora = Mapping[str, CorpusRecord]
"""Arm -> its text. They differ only where the vocabulary does."""

_RECORDS = TypeAdapter(list[CorpusRecord])


def open_corpora(arms: Sequence[Arm]) -> Corpora:
    """Open the texts of all arms; a text that is not prepared yet is prepared."""
    opened = {_settings(arm): arm for arm in arms}
    records = {settings: _open(arm.config) for settings, arm in opened.items()}
    return {arm.name: records[_settings(arm)] for arm in arms}


def _open(config: Config) -> CorpusRecord:
    data = open_training_data(config.data, config.model.vocab_size)
    return CorpusRecord(
        data=config.data,
        vocab_size=config.model.vocab_size,
        fingerprint=data.fingerprint,
        n_folds=data.n_folds,
        description=str(data),
        about=about_data(config.data),
    )


def reading(study: StudyConfig, arms: Sequence[Arm]) -> str:
    """Say what all arms read, before any text becomes tokens: its name, its bytes and its folds, in one line.

    Raise UserError if the text cannot be read or has too few folds.
    """
    data = arms[0].config.data
    about = about_data(data)
    judging = judging_folds(study, data, about.n_folds)
    if isinstance(about, AboutTask):
        return str(about)
    return f"{about}, {judging} of which judge{'' if judging > 1 else 's'} the runs"


def judging_folds(study: StudyConfig, data: DataConfig, n_folds: int) -> int:
    """Return how many of a text's folds judge the runs. Raise UserError if it has too few; tuning needs one more."""
    judging = study.folds or n_test_folds(n_folds)
    most = n_folds - bool(study.tune)
    if judging > most:
        taken = ", and the last one is for tuning" if study.tune else ""
        found = f"with data.held_out {data.held_out} the text has {n_folds}{taken}"
        raise UserError(f"folds: {judging} for tests; {found}; allowed: up to {most}")
    return judging


def write_corpora(corpora: Corpora, study: Path) -> None:
    """Record them in the study's folder."""
    distinct = {_key(record.data, record.vocab_size): record for record in corpora.values()}
    values = _RECORDS.dump_python(list(distinct.values()), mode="json")
    write_with_digests(study, {_CORPUS: json.dumps(values, indent=2)})


def read_corpora(arms: Sequence[Arm], study: Path) -> Corpora | None:
    """As recorded when the study ran; None where an arm's text is not recorded, or was by another version.

    UserError for damage.
    """
    verify(study / _CORPUS, "delete it, and the text itself is read")
    try:
        records = _RECORDS.validate_json((study / _CORPUS).read_bytes())
    except (OSError, ValueError):
        return None
    by_settings = {_key(record.data, record.vocab_size): record for record in records}
    found = {arm.name: by_settings[_settings(arm)] for arm in arms if _settings(arm) in by_settings}
    return found if len(found) == len(arms) else None


def _settings(arm: Arm) -> str:
    return _key(arm.config.data, arm.config.model.vocab_size)


def _key(data: DataConfig, vocab_size: int) -> str:
    """What decides an arm's tokens."""
    return json.dumps([data.model_dump(mode="json", exclude={"fold"}), vocab_size])


class _PlannedSeeds(Base):
    seeds: Seeds
    """As in the study's file."""


def write_planned_seeds(study: Path, seeds: Seeds) -> None:
    """Record it in the study's folder."""
    write_with_digests(study, {_PLANNED: _PlannedSeeds(seeds=seeds).model_dump_json()})


def planned_seeds(study: Path) -> Seeds | None:
    """None where nothing was recorded; UserError for damage."""
    file, remedy = study / _PLANNED, "remove it, and nothing is said of seeds that were added later"
    verify(file, remedy)
    try:
        return _PlannedSeeds.model_validate_json(file.read_bytes()).seeds
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{file}: damaged; {remedy}") from None


def added_later(planned: Collection[int], compared: Collection[int]) -> list[str]:
    """The warning for a study that compares seeds that it did not plan, or none."""
    if not (added := set(compared) - set(planned)):
        return []
    were = "was" if len(added) == 1 else "were"
    return [
        f"{len(added)} of the {len(compared)} seeds that are compared {were} not planned before the first result: who "
        "looks and then takes other seeds finds a difference between equal arms in more than 5% of studies"
    ]


def claim(folder: Path, config: StudyConfig, corpora: Corpora) -> None:
    """Make the folder this study's, or check that it is."""
    # Copied, so that the folder stays whole when those files change or go.
    plugins, copied = copies(config.plugins, folder)
    base = read_config(config.base)
    if Path(config.base).exists():
        copied[_BASE] = to_yaml(base).encode()
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; --out names a folder")
        make_folder(folder)
        refuse_linked_folders(folder)
        held = sorted(p for p in folder.iterdir() if not p.name.startswith(TEMPORARY))
        # A kill may leave the copies and their digests alone.
        foreign = [
            p.name for p in held if p.name != DIGESTS and not (p.is_file() and p.read_bytes() == copied.get(p.name))
        ]
    if before := _before(folder):
        if before.question != config.question:
            raise UserError(f"{folder}: holds another study ({before.question!r}); name another folder")
    elif foreign:
        raise UserError(f"{folder}: holds something else ({foreign[0]}) and no study.yaml; name an empty folder")
    values = config.model_dump(mode="json", exclude_defaults=True)
    remember([*config.plugins, *plugins_of(base)])
    if copied:
        write_with_digests(folder, {**copied})
    if plugins:
        values["plugins"] = plugins
    if _BASE in copied:
        values["base"] = _BASE
    write_atomic(folder / STUDY, to_yaml(values))  # not listed, for people may edit it
    write_corpora(corpora, folder)
    if not has_summary(folder):
        write_planned_seeds(folder, config.seeds)


def changed_fields(folder: Path, config: StudyConfig) -> list[str]:
    """The fields in which the study that the folder holds differs from this one."""
    before = _before(folder)
    if before is None or before.question != config.question:
        return []
    same = {"plugins"} if _same_plugins(folder, config) else set[str]()
    if before.base != config.base and read_config(before.base) == read_config(config.base):
        same.add("base")
    others = [name for name in StudyConfig.model_fields if name not in same]
    return [name for name in others if name == "plugins" or getattr(before, name) != getattr(config, name)]


def _same_plugins(folder: Path, config: StudyConfig) -> bool:
    """Whether the folder holds a copy of each, and names no other."""
    names, copied = copies(config.plugins, folder)
    held = read_yaml(folder / STUDY).get("plugins", [])
    return held == names and all(
        (folder / name).is_file() and (folder / name).read_bytes() == code for name, code in copied.items()
    )


def old_summary(folder: Path) -> StudySummary:
    """The summary that the folder holds, with a note that its runs are not there."""
    summary = read_summary(folder)
    note = "its runs are not here, or read other tokens, or in another number format; this is their old summary"
    return summary.model_copy(update={"warnings": [*summary.warnings, note]})


def _before(folder: Path) -> StudyConfig | None:
    return read_held(folder) if is_study_folder(folder) else None


def remove_stale(runs: Path, now: Mapping[str, Any]) -> None:
    """Remove the folders of runs that were made otherwise than they would be now; UserError where one is being
    trained."""
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(path)
        before = folder.environment()
        if any(before.get(key) != now[key] for key in _MATTERS if key in now):
            with folder.locked():
                remove_folder(path)


def mixed(environments: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A warning for each thing in which the runs of one study differ, and one where other code made them."""
    known = [environment for environment in environments if environment]
    for key, what in _MATTERS.items():
        found = list(dict.fromkeys(str(environment[key]) for environment in known if key in environment))
        if len(found) > 1:
            yield f"its runs differ in the {what} ({listed(found)}); differences between arms may come of that"
    if any(environment.get("code") != code_digest() for environment in known):
        yield "runs were made by other code of archlab than this; `archlab study run --renew` trains those again"
