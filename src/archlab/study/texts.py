"""What text each arm reads, noted in the study's folder, so that a report needs the corpus no more."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from archlab.config.base import Base
from archlab.data.prepare import open_data
from archlab.digests import verify, write_listed
from archlab.study.design import Arm

_FILE = "corpus.json"


class Text(Base):
    """The tokens of an arm: what decides them, and what they were found to be."""

    path: str
    held_out: float
    vocab_size: int
    fingerprint: str
    """16 hex digits that change with the tokens."""
    said: str
    """In words: what text, how many bytes and tokens, how much of it held out."""

    def is_of(self, arm: Arm) -> bool:
        """Whether the arm's config asks for this text."""
        return (self.path, self.held_out, self.vocab_size) == _wanted(arm)


Texts = Mapping[str, Text]
"""Arm -> its text; they differ only where the vocabulary does."""

_NOTED = TypeAdapter(list[Text])


def open_texts(designed: Sequence[Arm]) -> Texts:
    """Opened, and prepared where that has not been done yet."""
    opened = {wanted: _open(arm) for wanted, arm in {_wanted(arm): arm for arm in designed}.items()}
    return {arm.name: opened[_wanted(arm)] for arm in designed}


def _open(arm: Arm) -> Text:
    path, held_out, vocab_size = _wanted(arm)
    data = open_data(arm.config.data, vocab_size)
    return Text(path=path, held_out=held_out, vocab_size=vocab_size, fingerprint=data.fingerprint, said=str(data))


def note_texts(texts: Texts, study: Path) -> None:
    """Write them into the study's folder."""
    once = {(text.path, text.held_out, text.vocab_size): text for text in texts.values()}
    plain = _NOTED.dump_python(list(once.values()), mode="json")
    write_listed(study, {_FILE: json.dumps(plain, indent=2)})


def noted_texts(designed: Sequence[Arm], study: Path) -> Texts | None:
    """As noted when the study ran; None where that is not known of every arm, or is of another version.

    UserError for damage.
    """
    verify(study / _FILE, "delete it, and the text itself is read")
    try:
        noted = _NOTED.validate_json((study / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    found = {arm.name: text for arm in designed for text in noted if text.is_of(arm)}
    return found if len(found) == len(designed) else None


def _wanted(arm: Arm) -> tuple[str, float, int]:
    return arm.config.data.path, arm.config.data.held_out, arm.config.model.vocab_size
