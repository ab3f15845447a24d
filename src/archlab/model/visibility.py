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


def keys_seen(attention: Attention, queries: np.ndarray) -> np.ndarray:
    """Keys that the query at each position (from 0) sees, its own included; equals the mask counted."""
    before = queries + 1
    if attention.blocks is not None:
        size, summary = attention.blocks.size, min(attention.blocks.summary, attention.blocks.size)
        return queries % size + 1 + queries // size * summary
    if attention.window is None:
        return before
    window, stride = attention.window, attention.stride
    seen = np.minimum(before, window)
    if stride is not None:
        seen = seen + np.maximum(queries // stride - (window - 1) // stride, 0)
    # Global keys beyond the window, but for those that the stride has counted already.
    beyond = np.clip(before - window, 0, attention.global_tokens)
    return seen + beyond - (0 if stride is None else queries // stride - (queries - beyond) // stride)


def visible_pairs(attention: Attention, seq_len: int) -> int:
    """(query, key) pairs in a sequence of seq_len tokens."""
    if attention.blocks is None and attention.stride is None and not attention.global_tokens:
        window = min(attention.window or seq_len, seq_len)
        return window * (window + 1) // 2 + (seq_len - window) * window
    return int(keys_seen(attention, np.arange(seq_len)).sum())
