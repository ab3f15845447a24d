"""Order in which the kinds of layers of a model follow each other, in words."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Cycle(NamedTuple):
    """A sequence of different kinds of layers that a model repeats."""

    label: str
    """Label of the cycle, such as `(local, full) × 21`."""
    short: str
    """Shorter label, such as `cycle of 2 layers × 21`, used if the full label does not fit."""


def take_turns(kinds: Sequence[str]) -> bool:
    """Return whether a kind of layer occurs again after a different kind. `kinds` has one kind per layer."""
    return len(_runs(kinds)) > len(set(kinds))


def cycle(kinds: Sequence[str]) -> Cycle | None:
    """Return the shortest cycle of layer kinds that occurs at least twice, or None if there is none. The last
    repetition may be incomplete."""
    n = len(kinds)
    length = next((p for p in range(1, n // 2 + 1) if all(kinds[i] == kinds[i - p] for i in range(p, n))), None)
    if length is None:
        return None
    turns, left = divmod(n, length)
    rest = f", then {_in_words(kinds[n - left :])}" if left else ""
    label = f"({_in_words(kinds[:length])}) × {turns}{rest}"
    return Cycle(label, f"cycle of {length} layers × {turns}{f', then {left} more' if left else ''}")


def in_turns(kinds: Sequence[str]) -> str:
    """Return the kinds of all layers in order, such as `dense × 3, sparse × 58`."""
    found = cycle(kinds)
    return found.label if found else _in_words(kinds)


def _runs(kinds: Sequence[str]) -> list[tuple[str, int]]:
    return [(kind, len(list(run))) for kind, run in groupby(kinds)]


def _in_words(kinds: Sequence[str]) -> str:
    return ", ".join(kind if n == 1 else f"{kind} × {n}" for kind, n in _runs(kinds))
