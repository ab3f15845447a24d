"""Which text each arm reads. It is recorded in the study's folder, so that a report does not need the text itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from archlab.config.base import Base
from archlab.data.prepare import open_data
from archlab.data.split import n_test_folds
from archlab.digests import verify, write_with_digests
from archlab.study.design import Arm

_FILE = "corpus.json"


class CorpusRecord(Base):
    """The tokens that an arm reads: the settings that decide them, and what they were found to be."""

    path: str
    held_out: float
    vocab_size: int
    fingerprint: str
    """16 hex digits that change with the tokens."""
    n_folds: int
    """Parts into which the text is cut."""
    description: str
    """What text it is, how many bytes and tokens it has, and how much of it is held out."""

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
    records = {settings: _open(arm) for settings, arm in opened.items()}
    return {arm.name: records[_settings(arm)] for arm in arms}


def _open(arm: Arm) -> CorpusRecord:
    path, held_out, vocab_size = _settings(arm)
    data = open_data(arm.config.data, vocab_size)
    return CorpusRecord(
        path=path,
        held_out=held_out,
        vocab_size=vocab_size,
        fingerprint=data.fingerprint,
        n_folds=len(data.manifest.folds),
        description=str(data),
    )


def write_corpora(corpora: Corpora, study: Path) -> None:
    """Record them in the study's folder."""
    distinct = {(record.path, record.held_out, record.vocab_size): record for record in corpora.values()}
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
    by_settings = {(record.path, record.held_out, record.vocab_size): record for record in records}
    found = {arm.name: by_settings[_settings(arm)] for arm in arms if _settings(arm) in by_settings}
    return found if len(found) == len(arms) else None


def _settings(arm: Arm) -> tuple[str, float, int]:
    """What decides an arm's tokens."""
    return arm.config.data.path, arm.config.data.held_out, arm.config.model.vocab_size
