"""Which text each arm reads. It is recorded in the study's folder, so that a report does not need the text itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from archlab.config.core.base import Base
from archlab.config.schema import Config, DataConfig
from archlab.data.open import AboutTask, AboutText, about_data, open_training_data
from archlab.data.split import n_test_folds
from archlab.digests import verify, write_with_digests
from archlab.study.design import Arm
from archlab.study.schema import StudyConfig

_FILE = "corpus.json"


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

    Raise UserError if the text cannot be read.
    """
    about = about_data(arms[0].config.data)
    if isinstance(about, AboutTask):
        return str(about)
    judging = study.folds or n_test_folds(about.n_folds)
    return f"{about}, {judging} of which judge{'' if judging > 1 else 's'} the runs"


def write_corpora(corpora: Corpora, study: Path) -> None:
    """Record them in the study's folder."""
    distinct = {_key(record.data, record.vocab_size): record for record in corpora.values()}
    values = _RECORDS.dump_python(list(distinct.values()), mode="json")
    write_with_digests(study, {_FILE: json.dumps(values, indent=2)})


def read_corpora(arms: Sequence[Arm], study: Path) -> Corpora | None:
    """As recorded when the study ran; None where an arm's text is not recorded, or was by another version.

    UserError for damage.
    """
    verify(study / _FILE, "delete it, and the text itself is read")
    try:
        records = _RECORDS.validate_json((study / _FILE).read_bytes())
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
