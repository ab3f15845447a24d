"""Which key a query sees: masks, caches and FLOP counts all ask here.

Positions count from the start of the sequence; a key is never after its query.
"""

from typing import TYPE_CHECKING

from archlab.config.model_schema import Attention

if TYPE_CHECKING:
    from torch import Tensor


def visible(attention: Attention, query: "Tensor", key: "Tensor") -> "Tensor":
    """Boolean, true where the query at one position sees the key at another; the positions broadcast."""
    seen = key <= query
    return seen if attention.window is None else seen & (key > query - attention.window)


def is_plain_causal(attention: Attention, seq_len: int) -> bool:
    """Whether within seq_len tokens every query sees every key before it."""
    return attention.window is None or attention.window >= seq_len


def keys_seen(attention: Attention, position: int) -> int:
    """Keys that the query at `position` (from 0) sees, its own included."""
    return min(position + 1, attention.window or position + 1)


def visible_pairs(attention: Attention, seq_len: int) -> int:
    """(query, key) pairs in a sequence of seq_len tokens, in closed form; equals the sum of `keys_seen`."""
    window = min(attention.window or seq_len, seq_len)
    return window * (window + 1) // 2 + (seq_len - window) * window
