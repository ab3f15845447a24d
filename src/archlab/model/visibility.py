"""Which key a query sees: masks, caches and FLOP counts all ask here.

Positions count from the start of the sequence (of the document, where several are packed); a key is never after its
query. Without torch at run time, so that costs can be counted quickly: the arithmetic is that of tensors and arrays.
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from archlab.config.model_schema import Attention

if TYPE_CHECKING:
    from torch import Tensor

    Positions = TypeVar("Positions", Tensor, np.ndarray)


def visible(attention: Attention, query: "Positions", key: "Positions") -> "Positions":
    """Boolean, true where the query at one position sees the key at another; the positions broadcast."""
    distance = query - key
    causal = distance >= 0
    if attention.blocks is not None:
        size, summary = attention.blocks.size, attention.blocks.summary
        return causal & ((key // size == query // size) | (key % size >= size - summary))  # pyright: ignore[reportReturnType]
    if attention.window is None:
        return causal
    seen = distance < attention.window
    if attention.stride is not None:
        seen = seen | (distance % attention.stride == 0)
    if attention.global_tokens:
        seen = seen | (key < attention.global_tokens)  # as queries they see all that is before them anyway
    return causal & seen  # pyright: ignore[reportReturnType]


def is_plain_causal(attention: Attention, seq_len: int) -> bool:
    """Whether within seq_len tokens every query sees every key before it."""
    if attention.blocks is not None:
        return attention.blocks.size >= seq_len
    return attention.window is None or attention.window >= seq_len


def keys_kept(attention: Attention, context: int) -> int:
    """Keys that a cache must hold to go on after `context` tokens: the window where nothing beyond it is ever seen."""
    bounded = attention.window is not None and attention.stride is None and not attention.global_tokens
    return min(context, attention.window) if bounded and attention.window else context


def visible_pairs(attention: Attention, seq_len: int) -> int:
    """(query, key) pairs in a sequence of seq_len tokens; equals the mask counted, without making one."""
    if attention.blocks is not None:
        size, summary = attention.blocks.size, min(attention.blocks.summary, attention.blocks.size)
        earlier = _blocks_before(seq_len, size)
        return _up_to(seq_len) - size * earlier + summary * earlier
    window = min(attention.window or seq_len, seq_len)
    beyond = seq_len - window
    """Queries that see a whole window and have keys behind it."""
    pairs = _up_to(window) + beyond * window
    few = min(attention.global_tokens, beyond)
    """Queries that have fewer keys behind the window than there are global ones, or just as many."""
    pairs += _up_to(few) + (beyond - few) * attention.global_tokens
    if attention.stride is None:
        return pairs
    stride, within = attention.stride, (window - 1) // attention.stride
    pairs += _blocks_before(seq_len, stride) - _blocks_before(window, stride) - beyond * within
    # Global keys that the stride has counted already: all beyond the window, but those after the global ones.
    last = seq_len - attention.global_tokens
    after_global = few * within
    after_global += _blocks_before(last, stride) - _blocks_before(window, stride) if beyond > few else 0
    return pairs - (_blocks_before(seq_len, stride) - _blocks_before(window, stride) - after_global)


def _up_to(n: int) -> int:
    """1 + 2 + ... + n."""
    return n * (n + 1) // 2


def _blocks_before(n: int, size: int) -> int:
    """The sum of q // size over all q < n."""
    whole, rest = divmod(n, size)
    return size * _up_to(whole - 1) + whole * rest
