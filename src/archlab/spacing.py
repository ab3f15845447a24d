"""Choice of a few items at even intervals."""

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


def evenly_spaced(items: Sequence[_T], most: int) -> list[_T]:
    """Return all items, or `most` of them at even intervals. The first and the last item are always included if `most`
    is at least 2."""
    n = min(most, len(items))
    return [items[round(i * (len(items) - 1) / max(1, n - 1))] for i in range(n)]
