"""Special tokens that objectives use: their names in a tokenizer, and their ids."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer

from archlab.config.reserve import MODE, NO_MODES, SENTINELS
from archlab.data.tokenizer import MASKS, mask_token

_SENTINEL = "<extra_id_{}>"
"""Name of each sentinel, counted from 0, as in T5 (Raffel 2019)."""

_MODE = "[{}]"
"""Name of a mode token, as in UL2 (Tay 2022)."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of special tokens."""

    vocab_size: int
    """Vocabulary size of the data: all token ids are below it."""
    documents: tuple[int, ...] = ()
    """Tokens that precede each document; empty for a task, which has no documents."""
    mask: int | None = None
    """Token that stands for a hidden token; None if there is none."""
    sentinels: tuple[int, ...] = ()
    """Tokens that stand for hidden spans, from the first span of a window to the last; empty if there are none."""
    modes: Mapping[str, int] = field(default_factory=dict)
    """Tokens that precede an input and tell the model its objective, by the name of the mode."""
    responses: tuple[int, ...] = ()
    """Tokens that end the responses of conversations; empty for other data."""

    @classmethod
    def at_the_end(cls, vocab_size: int, reserved: Sequence[str]) -> "SpecialIds":
        """Return ids for random tokens, which have no tokenizer: the last ones of the vocabulary. Token 0 begins a
        document."""
        names = reserved_names(reserved)
        ids = {name: vocab_size - len(names) + number for number, name in enumerate(names)}
        return cls(vocab_size, (0,), ids.get(MASKS[0]), _sentinels(ids.get), _modes(ids))

    def n_available(self, entry: str) -> int:
        """Return the number of tokens of the kind that an entry of `data.reserve` names. The entry may ask for fewer or
        more."""
        if entry.startswith(SENTINELS):
            return len(self.sentinels)
        if entry.startswith(MODE):
            return int(entry.removeprefix(MODE) in self.modes)
        return int(self.mask is not None)


def special_ids(tokenizer: Tokenizer, vocab_size: int, documents: tuple[int, ...]) -> SpecialIds:
    """Return the ids of the special tokens of a tokenizer, which are found by their names."""
    sentinels = _sentinels(tokenizer.token_to_id)
    return SpecialIds(vocab_size, documents, mask_token(tokenizer), sentinels, mode_tokens(tokenizer))


def mode_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the mode tokens of a tokenizer by the name of the mode: its special tokens whose name is in brackets,
    without those of BERT, such as [CLS]."""
    added = tokenizer.get_added_tokens_decoder().items()
    return _modes({token.content: i for i, token in added if token.special})


def _sentinels(id_of: Callable[[str], int | None]) -> tuple[int, ...]:
    found = list[int]()
    while (token := id_of(_SENTINEL.format(len(found)))) is not None:
        found.append(token)
    return tuple(found)


def _modes(ids: Mapping[str, int]) -> dict[str, int]:
    in_brackets = {name[1:-1]: token for name, token in ids.items() if re.fullmatch(r"\[\w+\]", name)}
    return {name: token for name, token in in_brackets.items() if name not in NO_MODES}


def reserved_names(reserve: Sequence[str]) -> list[str]:
    """Return the names of the tokens that `data.reserve` describes (`config/reserve.py`)."""
    names = list[str]()
    for entry in reserve:
        if entry.startswith(SENTINELS):
            names += map(_SENTINEL.format, range(int(entry.removeprefix(SENTINELS))))
        else:
            names.append(_MODE.format(entry.removeprefix(MODE)) if entry.startswith(MODE) else MASKS[0])
    return list(dict.fromkeys(names))


def reserve_tokens(tokenizer: Tokenizer, reserve: Sequence[str]) -> None:
    """Add the reserved tokens that a tokenizer lacks. They get the ids after all other tokens."""
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in reserved_names(reserve)])
