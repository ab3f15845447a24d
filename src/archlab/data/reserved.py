"""Special tokens that objectives use: their names in a tokenizer, and their ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from archlab.data.tokenizer import MASKS, mask_token

_SENTINEL = "<extra_id_{}>"
"""Name of each sentinel, counted from 0, as in T5 (Raffel 2019)."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of special tokens."""

    n_tokens: int
    """Upper limit of the token ids of the data: all ids are below this number."""
    documents: tuple[int, ...] = ()
    """Tokens that precede each document; empty for a task, which has no documents."""
    mask: int | None = None
    """Token that stands for a hidden token; None if there is none."""
    sentinels: tuple[int, ...] = ()
    """Tokens that stand for hidden spans, from the first span of a window to the last; empty if there are none."""

    @classmethod
    def at_the_end(cls, vocab_size: int, reserved: Sequence[str]) -> "SpecialIds":
        """Return ids for random tokens, which have no tokenizer: the last ones of the vocabulary. Token 0 begins a
        document."""
        names, first = reserved_names(reserved), vocab_size - len(reserved_names(reserved))
        ids = {name: first + number for number, name in enumerate(names)}
        sentinels = tuple(token for name, token in ids.items() if name != MASKS[0])
        return cls(vocab_size, documents=(0,), mask=ids.get(MASKS[0]), sentinels=sentinels)


def special_ids(tokenizer: Tokenizer, n_tokens: int, documents: tuple[int, ...]) -> SpecialIds:
    """Return the ids of the special tokens of a tokenizer, which are found by their names."""
    sentinels = list[int]()
    while (token := tokenizer.token_to_id(_SENTINEL.format(len(sentinels)))) is not None:
        sentinels.append(token)
    return SpecialIds(n_tokens, documents, mask_token(tokenizer), tuple(sentinels))


def reserved_names(reserve: Sequence[str]) -> list[str]:
    """Return the names of the tokens that `data.reserve` describes: `mask`, or `sentinels:N` for N sentinels."""
    names = list[str]()
    for what in reserve:
        _, _, count = what.partition(":")
        names += [_SENTINEL.format(i) for i in range(int(count))] if count else [MASKS[0]]
    return names


def reserve_tokens(tokenizer: Tokenizer, reserve: Sequence[str]) -> None:
    """Add the reserved tokens that a tokenizer lacks. They get the ids after all other tokens."""
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in reserved_names(reserve)])
