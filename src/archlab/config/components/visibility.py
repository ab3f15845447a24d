"""Rules for which keys a query sees. Masks, caches and FLOP counts all use them.

Positions count from the start of the sequence, or of the document if several are packed. At run time this module does
without torch, so that costs can be counted quickly. Its arithmetic works on tensors and on arrays.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field

from archlab.config.core.base import Index, Length, Settings

if TYPE_CHECKING:
    from torch import Tensor

    Positions = TypeVar("Positions", Tensor, np.ndarray)


class BlockSparse(Settings):
    """Fixed sparse attention (Child 2019): a query sees its own block so far and the last keys of every earlier
    block."""

    size: Length
    """Number of tokens per block."""
    summary: Index
    """Number of last keys of an earlier block that later queries see. 0: none, so that blocks are independent chunks
    (Llama 4)."""


class Visibility(Settings):
    """Fields of an attention that say which keys a query sees: in which direction, and how far."""

    visibility: Literal["causal", "prefix", "two_sided"] = "causal"
    """Direction in which a query sees keys. `causal`: its own key and those before it. `prefix`: also the keys after it
    within the prefix of the text, whose length each pass is given (prefix LM, Raffel 2020). `two_sided`: also all keys
    after it, as in an encoder."""
    window: Length | None = None
    """Window w: a query sees the keys at a distance below w, its own included, in each visible direction. null: no
    window."""
    stride: Annotated[Index, Field(ge=2)] | None = None
    """Step s: beyond the window, keys at distances divisible by s are visible too (dilated attention). null: none."""
    global_tokens: Index = 0
    """Number of first tokens of a sequence that see all tokens and that all tokens see, in spite of the window
    (Longformer)."""
    blocks: BlockSparse | None = None
    """Fixed sparse blocks instead of a window. null: none."""

    def describe_visibility(self) -> str:
        """Return the window, and the direction unless it is causal."""
        sides = "" if self.visibility == "causal" else f"{self.visibility} "
        return f"{sides}{self.window or ('' if sides else '-')}".strip()


def visible(rule: Visibility, query: "Positions", key: "Positions", prefix: "Positions | int" = 0) -> "Positions":
    """Return booleans: true if the query at one position sees the key at the other. The arguments broadcast.

    `prefix` is the number of first tokens that see each other in both directions; only the rule `prefix` uses it.
    """
    if rule.visibility == "two_sided":
        return _in_reach(rule, query, key)
    faces = query >= key
    if rule.visibility == "prefix":
        faces = faces | (key < prefix)  # the whole prefix is before any later query
    if rule.window is None and rule.blocks is None:
        return faces  # pyright: ignore[reportReturnType]
    return faces & _in_reach(rule, query, key)  # pyright: ignore[reportReturnType, reportOperatorIssue]


def _in_reach(rule: Visibility, query: "Positions", key: "Positions") -> "Positions":
    """Return whether the key is near enough, in either direction."""
    if rule.blocks is not None:
        size, summary = rule.blocks.size, rule.blocks.summary
        return (key // size == query // size) | (key % size >= size - summary)  # pyright: ignore[reportReturnType]
    distance = abs(query - key)
    if rule.window is None:
        return distance >= 0  # pyright: ignore[reportReturnType]
    seen = distance < rule.window
    if rule.stride is not None:
        seen = seen | (distance % rule.stride == 0)
    if rule.global_tokens:
        seen = seen | (key < rule.global_tokens) | (query < rule.global_tokens)
    return seen  # pyright: ignore[reportReturnType]


def is_plain_causal(rule: Visibility, seq_len: int) -> bool:
    """Return whether, within seq_len tokens, every query sees every key before it and none after it."""
    return rule.visibility == "causal" and reaches_all(rule, seq_len)


def reaches_all(rule: Visibility, seq_len: int) -> bool:
    """Return whether, within seq_len tokens, every key is near enough to every query, in its visible directions."""
    if rule.blocks is not None:
        return rule.blocks.size >= seq_len
    return rule.window is None or rule.window >= seq_len


def keys_kept(rule: Visibility, context: int) -> int:
    """Return the number of keys that a cache needs after `context` tokens.

    This is the window or the block, if nothing beyond it is ever visible.
    """
    if rule.blocks is not None and not rule.blocks.summary:
        return min(context, rule.blocks.size)
    bounded = rule.window is not None and rule.stride is None and not rule.global_tokens
    return min(context, rule.window) if bounded and rule.window else context


def visible_pairs(rule: Visibility, seq_len: int) -> int:
    """Return the number of visible (query, key) pairs in a sequence of seq_len tokens without a prefix.

    It equals the sum of the mask, but needs no mask.
    """
    before = _pairs_before(rule, seq_len)
    if rule.visibility != "two_sided":
        return before
    if rule.blocks is None or not rule.blocks.summary:
        return 2 * before - seq_len  # the mask is symmetric, and each token sees itself once
    size, summary = rule.blocks.size, rule.blocks.summary
    blocks, rest = divmod(seq_len, size)
    summaries_in_rest = max(0, rest - (size - summary))
    within_blocks = blocks * size**2 + rest**2
    across_blocks = (seq_len - size) * blocks * summary + (seq_len - rest) * summaries_in_rest
    return within_blocks + across_blocks


def _pairs_before(rule: Visibility, seq_len: int) -> int:
    """Return the number of pairs whose key is not after the query."""
    if rule.blocks is not None:
        size, summary = rule.blocks.size, min(rule.blocks.summary, rule.blocks.size)
        earlier = _blocks_before(seq_len, size)
        return _up_to(seq_len) - size * earlier + summary * earlier
    window = min(rule.window or seq_len, seq_len)
    beyond = seq_len - window  # queries that see a whole window and have keys behind it
    pairs = _up_to(window) + beyond * window
    # Queries with at most as many keys behind the window as there are global keys.
    few = min(rule.global_tokens, beyond)
    pairs += _up_to(few) + (beyond - few) * rule.global_tokens
    if rule.stride is None:
        return pairs
    stride, within = rule.stride, (window - 1) // rule.stride
    pairs += _blocks_before(seq_len, stride) - _blocks_before(window, stride) - beyond * within
    # Global keys that the stride has counted already: all keys beyond the window except those after the global ones.
    last = seq_len - rule.global_tokens
    after_global = few * within
    after_global += _blocks_before(last, stride) - _blocks_before(window, stride) if beyond > few else 0
    return pairs - (_blocks_before(seq_len, stride) - _blocks_before(window, stride) - after_global)


def _up_to(n: int) -> int:
    """Return 1 + 2 + ... + n."""
    return n * (n + 1) // 2


def _blocks_before(n: int, size: int) -> int:
    """Return the sum of q // size over all q < n."""
    whole, rest = divmod(n, size)
    return size * _up_to(whole - 1) + whole * rest
