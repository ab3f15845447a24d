"""Which key a query sees: masks, caches and FLOP counts all ask here.

Positions count from the start of the sequence (of the document, where several are packed); a key is never after its
query. Without torch at run time, so that costs can be counted quickly: the arithmetic is that of tensors and arrays.
"""

from typing import TYPE_CHECKING, Annotated, TypeVar

import numpy as np
from pydantic import Field

from archlab.config.base import Base, Index, Length
from archlab.config.component import Component

if TYPE_CHECKING:
    from torch import Tensor

    Positions = TypeVar("Positions", Tensor, np.ndarray)


class BlockSparse(Base):
    """Fixed sparse attention (Child 2019): the own block so far, and the last keys of every earlier block."""

    size: Length
    """Tokens per block."""
    summary: Index
    """Last keys of an earlier block that later queries see; 0: none, so that blocks are chunks (Llama 4)."""


class Visibility(Component):
    """The fields of an attention that say which keys a query sees."""

    window: Length | None = None
    """Keys that a query sees, its own included: those at distance < window. null: all before it."""
    stride: Annotated[Index, Field(ge=2)] | None = None
    """Beyond the window, keys at distances divisible by it are seen too (dilated). null: none."""
    global_tokens: Index = 0
    """The first tokens of a sequence, which all later ones see, window or not (Longformer, causal form)."""
    blocks: BlockSparse | None = None
    """Fixed sparse blocks instead of a window. null: none."""


def visible(rule: Visibility, query: "Positions", key: "Positions") -> "Positions":
    """Boolean, true where the query at one position sees the key at another; the positions broadcast."""
    distance = query - key
    causal = distance >= 0
    if rule.blocks is not None:
        size, summary = rule.blocks.size, rule.blocks.summary
        return causal & ((key // size == query // size) | (key % size >= size - summary))  # pyright: ignore[reportReturnType]
    if rule.window is None:
        return causal
    seen = distance < rule.window
    if rule.stride is not None:
        seen = seen | (distance % rule.stride == 0)
    if rule.global_tokens:
        seen = seen | (key < rule.global_tokens)  # as queries they see all that is before them anyway
    return causal & seen  # pyright: ignore[reportReturnType]


def is_plain_causal(rule: Visibility, seq_len: int) -> bool:
    """Whether within seq_len tokens every query sees every key before it."""
    if rule.blocks is not None:
        return rule.blocks.size >= seq_len
    return rule.window is None or rule.window >= seq_len


def keys_kept(rule: Visibility, context: int) -> int:
    """Keys that a cache must hold to go on after `context` tokens: the window, or the block, where nothing beyond it is
    ever seen."""
    if rule.blocks is not None and not rule.blocks.summary:
        return min(context, rule.blocks.size)
    bounded = rule.window is not None and rule.stride is None and not rule.global_tokens
    return min(context, rule.window) if bounded and rule.window else context


def visible_pairs(rule: Visibility, seq_len: int) -> int:
    """(query, key) pairs in a sequence of seq_len tokens; equals the mask counted, without making one."""
    if rule.blocks is not None:
        size, summary = rule.blocks.size, min(rule.blocks.summary, rule.blocks.size)
        earlier = _blocks_before(seq_len, size)
        return _up_to(seq_len) - size * earlier + summary * earlier
    window = min(rule.window or seq_len, seq_len)
    beyond = seq_len - window
    """Queries that see a whole window and have keys behind it."""
    pairs = _up_to(window) + beyond * window
    few = min(rule.global_tokens, beyond)
    """Queries that have fewer keys behind the window than there are global ones, or just as many."""
    pairs += _up_to(few) + (beyond - few) * rule.global_tokens
    if rule.stride is None:
        return pairs
    stride, within = rule.stride, (window - 1) // rule.stride
    pairs += _blocks_before(seq_len, stride) - _blocks_before(window, stride) - beyond * within
    # Global keys that the stride has counted already: all beyond the window, but those after the global ones.
    last = seq_len - rule.global_tokens
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
