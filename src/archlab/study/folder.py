"""A study's folder: all files except those of the runs, and a check that the folder belongs to the study."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from archlab.config.core.base import Base
from archlab.config.core.plugins import copies
from archlab.config.core.trust import remember
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.config.paths import plugins_of
from archlab.config.schema import Config, DataConfig
from archlab.config.training import resolve_train
from archlab.data.objectives import Batches
from archlab.data.open import AboutTask, AboutText, about_data, open_training_data
from archlab.data.split import n_test_folds
from archlab.data.training_data import TrainingData
from archlab.digests import DIGESTS, verify, write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.files import STUDY, TEMPORARY, disk_errors, make_folder, refuse_linked_folders, remove_folder, write_atomic
from archlab.pricing.units import plural
from archlab.study.arm import Arm
from archlab.study.formatting import listed
from archlab.study.record import StudySummary
from archlab.study.schema import Seeds, StudyConfig
from archlab.study.study_file import is_study_folder, read_study_folder
from archlab.study.summary_file import has_summary, read_summary
from archlab.training.code_digest import code_digest
from archlab.training.run_folder import RunFolder

_BASE = "base.yaml"
"""Name of the copy of the base config in a study's folder. A preset is not copied."""
_CORPUS = "corpus.json"
_PLANNED = "planned.json"
_PARTS_OF_ENVIRONMENT = {
    "code": "code of archlab",
    "torch": "torch",
    "processor": "processor",
    "threads": "number of threads",
    "compiled": "choice to compile",
}
"""Fields of a run's environment that affect rounding or speed. Each is mapped to its name in messages."""


class CorpusRecord(Base):
    """Record of the tokens that an arm reads: the settings that determine the tokens, and a fingerprint and description
    of them."""

    data: DataConfig
    vocab_size: int
    fingerprint: str
    """Hash of the tokens: 16 hex digits."""
    n_folds: int
    """Number of folds of the corpus."""
    description: str
    """Description of the corpus: its name, bytes, tokens and held-out fraction."""
    about: AboutText | AboutTask | None = None
    """Name, bytes and folds of the corpus; null in records of older versions of archlab."""

    @property
    def test_folds(self) -> int:
        """Number of test folds, which are the first folds of the corpus. No tokenizer was trained on them."""
        return n_test_folds(self.n_folds)


Corpora = Mapping[str, CorpusRecord]
"""Tokenized corpus by arm. Arms with the same text and vocabulary size share a corpus."""

_RECORDS = TypeAdapter(list[CorpusRecord])


def open_corpora(arms: Sequence[Arm]) -> Corpora:
    """Open the corpora of all arms. Prepare each corpus that has not been prepared yet.

    Raise UserError if the objective of an arm cannot read its corpus.
    """
    configs = {_settings(arm): arm.config for arm in arms}
    opened = {settings: open_training_data(c.data, c.model.vocab_size) for settings, c in configs.items()}
    for arm in arms:
        try:
            Batches.of(arm.config, opened[_settings(arm)]).check(resolve_train(arm.config).seq_len)
        except UserError as error:
            raise UserError(f"arm {arm.name}: {error}") from None
    records = {settings: _record(configs[settings], data) for settings, data in opened.items()}
    return {arm.name: records[_settings(arm)] for arm in arms}


def _record(config: Config, data: TrainingData) -> CorpusRecord:
    return CorpusRecord(
        data=config.data,
        vocab_size=config.model.vocab_size,
        fingerprint=data.fingerprint,
        n_folds=data.n_folds,
        description=str(data),
        about=about_data(config.data),
    )


def describe_text(study: StudyConfig, arms: Sequence[Arm]) -> str:
    """Return one line about the corpus of all arms: its name and bytes, its folds, and the number of folds for
    evaluation.

    The corpus is not tokenized for this line. Raise UserError if the corpus cannot be read or has too few folds.
    """
    data = arms[0].config.data
    about = about_data(data)
    judging = judging_folds(study, data, about.n_folds)
    if isinstance(about, AboutTask):
        return str(about)
    return f"{about}; {judging} {'are' if judging > 1 else 'is'} used for evaluation"


def judging_folds(study: StudyConfig, data: DataConfig, n_folds: int) -> int:
    """Return the number of folds on which runs are evaluated. Raise UserError if the corpus has too few folds. Tuning
    needs one additional fold."""
    judging = study.folds or (1 if study.start else n_test_folds(n_folds))
    largest = n_folds - bool(study.tune)
    if judging > largest:
        for_tuning = ", and the last one is for tuning" if study.tune else ""
        available = f"with data.held_out {data.held_out} the text has {plural(n_folds, 'fold')}{for_tuning}"
        raise UserError(f"folds is {judging}; {available}; allowed: up to {largest}")
    return judging


def write_corpora(corpora: Corpora, study: Path) -> None:
    distinct = {_key(record.data, record.vocab_size): record for record in corpora.values()}
    values = _RECORDS.dump_python(list(distinct.values()), mode="json")
    write_with_digests(study, {_CORPUS: json.dumps(values, indent=2)})


def read_corpora(arms: Sequence[Arm], study: Path) -> Corpora | None:
    """Return the corpora that were recorded when the study ran.

    Return None if an arm's corpus is not recorded, or if the record is from another version of archlab. Raise UserError
    if the record is damaged.
    """
    verify(study / _CORPUS, "delete it, and archlab reads the text again")
    try:
        records = _RECORDS.validate_json((study / _CORPUS).read_bytes())
    except (OSError, ValueError):
        return None
    by_settings = {_key(record.data, record.vocab_size): record for record in records}
    corpora = {arm.name: by_settings[_settings(arm)] for arm in arms if _settings(arm) in by_settings}
    return corpora if len(corpora) == len(arms) else None


def _settings(arm: Arm) -> str:
    return _key(arm.config.data, arm.config.model.vocab_size)


def _key(data: DataConfig, vocab_size: int) -> str:
    return json.dumps([data.model_dump(mode="json", exclude={"fold"}), vocab_size])


class _PlannedSeeds(Base):
    seeds: Seeds
    """Value of `seeds` in the study's file."""


def write_planned_seeds(study: Path, seeds: Seeds) -> None:
    write_with_digests(study, {_PLANNED: _PlannedSeeds(seeds=seeds).model_dump_json()})


def planned_seeds(study: Path) -> Seeds | None:
    """Return the planned seeds from the study's folder, or None if they are not recorded. Raise UserError if the record
    is damaged."""
    file, remedy = study / _PLANNED, "delete it, but archlab then cannot warn of seeds that were added later"
    verify(file, remedy)
    try:
        return _PlannedSeeds.model_validate_json(file.read_bytes()).seeds
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{file} is damaged; {remedy}") from None


def added_later(planned: Collection[int], compared: Collection[int]) -> list[str]:
    """Return a list with one warning if the study compares seeds that were not planned. Otherwise return an empty
    list."""
    if not (added := set(compared) - set(planned)):
        return []
    verb = "was" if len(added) == 1 else "were"
    return [
        f"{len(added)} of the {len(compared)} compared seeds {verb} not planned before the first result; if seeds "
        "are chosen after a look at the results, more than 5% of studies find a difference where there is none"
    ]


def claim_folder(folder: Path, config: StudyConfig, corpora: Corpora) -> None:
    """Check that a folder is new, empty or already belongs to this study. Then write the study's files into it."""
    # Copies keep the folder complete when those files change or are deleted.
    plugins, copied = copies(config.plugins, folder)
    base = read_config(config.base)
    if Path(config.base).exists():
        copied[_BASE] = to_yaml(base).encode()
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; allowed: a folder")
        make_folder(folder)
        refuse_linked_folders(folder)
        files = sorted(p for p in folder.iterdir() if not p.name.startswith(TEMPORARY))
        # A killed process may leave only the copies and their digests.
        foreign = [
            p.name for p in files if p.name != DIGESTS and not (p.is_file() and p.read_bytes() == copied.get(p.name))
        ]
    if earlier := _study_in(folder):
        if earlier.question != config.question:
            raise UserError(f"{folder} contains another study ({earlier.question!r}); choose another folder")
    elif foreign:
        raise UserError(f"{folder} contains other files ({_first(foreign)}); choose an empty or new folder")
    values = config.model_dump(mode="json", exclude_defaults=True)
    remember([*config.plugins, *plugins_of(base)])
    if copied:
        write_with_digests(folder, {**copied})
    if plugins:
        values["plugins"] = plugins
    if _BASE in copied:
        values["base"] = _BASE
    write_atomic(folder / STUDY, to_yaml(values))  # without a digest, because people may edit it
    write_corpora(corpora, folder)
    if not has_summary(folder):
        write_planned_seeds(folder, config.seeds)


def _first(names: Sequence[str], n: int = 2) -> str:
    """Return the first `n` names, separated by commas, and `...` if there are more."""
    return ", ".join([*names[:n], *(["..."] if len(names) > n else [])])


def changed_fields(folder: Path, config: StudyConfig) -> list[str]:
    """Return the names of the fields in which this study differs from the study in the folder."""
    earlier = _study_in(folder)
    if earlier is None or earlier.question != config.question:
        return []
    unchanged = {"plugins"} if _same_plugins(folder, config) else set[str]()
    if earlier.base != config.base and read_config(earlier.base) == read_config(config.base):
        unchanged.add("base")
    compared = [name for name in StudyConfig.model_fields if name not in unchanged]
    return [name for name in compared if name == "plugins" or getattr(earlier, name) != getattr(config, name)]


def _same_plugins(folder: Path, config: StudyConfig) -> bool:
    names, copied = copies(config.plugins, folder)
    named = read_yaml(folder / STUDY).get("plugins", [])
    return named == names and all(
        (folder / name).is_file() and (folder / name).read_bytes() == code for name, code in copied.items()
    )


def old_summary(folder: Path) -> StudySummary:
    """Return the summary in the folder, with an additional warning that its runs are missing."""
    summary = read_summary(folder)
    note = "this is an old summary: its runs are missing, or have different tokens or a different dtype"
    return summary.model_copy(update={"warnings": [*summary.warnings, note]})


def _study_in(folder: Path) -> StudyConfig | None:
    return read_study_folder(folder) if is_study_folder(folder) else None


def remove_stale(runs: Path, now: Mapping[str, Any]) -> None:
    """Remove the folders of runs whose recorded environment differs from `now`.

    Raise UserError if one of these runs is being trained.
    """
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(path)
        earlier = folder.environment()
        if any(earlier.get(key) != now[key] for key in _PARTS_OF_ENVIRONMENT if key in now):
            with folder.locked():
                remove_folder(path)


def environment_warnings(environments: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning for each part of the environment in which the runs differ. Also yield a warning if a different
    version of archlab's code made some of the runs."""
    known = [environment for environment in environments if environment]
    for key, part in _PARTS_OF_ENVIRONMENT.items():
        values = list(dict.fromkeys(str(environment[key]) for environment in known if key in environment))
        if len(values) > 1:
            yield f"the runs differ in the {part} ({listed(values)}), which can cause differences between arms"
    if any(environment.get("code") != code_digest() for environment in known):
        yield "another version of archlab's code made some runs; `archlab study run --renew` trains them again"
