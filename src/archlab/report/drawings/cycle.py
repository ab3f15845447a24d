"""Order of the kinds of layers, in words."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Cycle(NamedTuple):
    """Layers of several kinds that take turns."""

    label: str
    """`(local, full) × 21`."""
    short: str
    """`cycle of 2 layers × 21`, for a place that has no room for the label."""


def take_turns(kinds: Sequence[str]) -> bool:
    """Return whether some kind of layer, of all layers in order, comes again after another one."""
    return len(_runs(kinds)) > len(set(kinds))


def cycle(kinds: Sequence[str]) -> Cycle | None:
    """Return the shortest cycle of the layers' kinds that is passed through at least twice, if any. The last turn may
    end early."""
    n = len(kinds)
    length = next((p for p in range(1, n // 2 + 1) if all(kinds[i] == kinds[i - p] for i in range(p, n))), None)
    if length is None:
        return None
    turns, left = divmod(n, length)
    rest = f", then {_in_words(kinds[n - left :])}" if left else ""
    label = f"({_in_words(kinds[:length])}) × {turns}{rest}"
    return Cycle(label, f"cycle of {length} layers × {turns}{f', then {left} more' if left else ''}")


def _runs(kinds: Sequence[str]) -> list[tuple[str, int]]:
    return [(kind, len(list(run))) for kind, run in groupby(kinds)]


def _in_words(kinds: Sequence[str]) -> str:
    return ", ".join(kind if n == 1 else f"{kind} × {n}" for kind, n in _runs(kinds))
