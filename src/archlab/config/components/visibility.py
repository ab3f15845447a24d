"""Rules that determine which keys a query sees. Masks, caches and FLOP counts all use them. Positions count from the
start of the sequence, or from the start of the document if a sequence consists of several packed documents.

This module does not import torch at run time, so that costs can be computed quickly. The functions accept tensors and
arrays.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from archlab.config.components.kernel_choice import MaskKind
from archlab.config.core.base import Index, Length, Settings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Positions = TypeVar("Positions", Tensor, np.ndarray)


class BlockSparse(Settings):
    """Fixed sparse attention (Child 2019): a query sees the keys of its own block up to itself, and the last keys of
    every earlier block."""

    size: Length
    """Number of tokens per block."""
    summary: Index
    """Number of keys at the end of each earlier block that later queries see. 0: none, so that blocks are
    independent chunks (Llama 4)."""


VisibilityName = Literal["causal", "prefix", "two_sided"]


class Visibility(Settings):
    """Fields of an attention component that determine which keys a query sees: in which direction, and how far."""

    visibility: VisibilityName = "causal"
    """Direction in which a query sees keys. `causal`: its own key and earlier keys. `prefix`: in addition, later
    keys within the prefix of the sequence, whose length is an argument of each pass (prefix LM, Raffel 2020).
    `two_sided`: all earlier and later keys, as in an encoder."""
    window: Length | None = None
    """Size w of the attention window in tokens: a query sees its own key and the nearest w - 1 keys in each visible
    direction. null: no window."""
    stride: Annotated[Index, Field(ge=2)] | None = None
    """Stride s of dilated attention in tokens: keys beyond the window are visible if their distance is divisible by
    s. null: no keys beyond the window."""
    global_tokens: Index = 0
    """Number of global tokens at the start of a sequence (Longformer). In each visible direction, they see all tokens
    and all tokens see them, regardless of the window."""
    blocks: BlockSparse | None = None
    """Fixed sparse blocks that replace a window. null: no blocks."""

    @property
    def sees_later_keys(self) -> bool:
        """Whether a query may see keys after its own position."""
        return self.visibility != "causal"

    def describe_visibility(self) -> str:
        sides = "" if self.visibility == "causal" else f"{self.visibility} "
        return f"{sides}{self.window or ('' if sides else '-')}".strip()


def visible(rule: Visibility, query: "Positions", key: "Positions", prefix: "Positions | int" = 0) -> "Positions":
    """Return a boolean tensor or array: true if the query at position `query` sees the key at position `key`.

    The positions broadcast. `prefix` is the length of the prefix, whose tokens see each other in both directions. It is
    used only if `visibility` is `prefix`.
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
    """Return whether, within `seq_len` tokens, every query sees its own key, every earlier key and no later key."""
    return rule.visibility == "causal" and reaches_all(rule, seq_len)


def hidden_keys(rule: Visibility, seq_len: int) -> MaskKind:
    """Return the kind of mask of one whole sequence of `seq_len` tokens without a prefix."""
    if rule.visibility == "two_sided" and reaches_all(rule, seq_len):
        return "none"
    return "causal" if is_plain_causal(rule, seq_len) else "other"


def reaches_all(rule: Visibility, seq_len: int) -> bool:
    """Return whether, within `seq_len` tokens, no window or block hides a key from a query. The direction in which
    queries see keys is not considered."""
    if rule.blocks is not None:
        return rule.blocks.size >= seq_len
    return rule.window is None or rule.window >= seq_len


def keys_kept(rule: Visibility, context: int) -> int:
    """Return the number of keys that a cache must store after `context` tokens. If later tokens can see only the keys
    of the window or block, only these keys are stored."""
    if rule.blocks is not None and not rule.blocks.summary:
        return min(context, rule.blocks.size)
    bounded = rule.window is not None and rule.stride is None and not rule.global_tokens
    return min(context, rule.window) if bounded and rule.window else context


def visible_pairs(rule: Visibility, seq_len: int) -> int:
    """Return the number of visible query-key pairs in a sequence of `seq_len` tokens without a prefix.

    This is the number of true elements of the mask, but is computed without creating the mask.
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
    if rule.blocks is not None:
        size, summary = rule.blocks.size, min(rule.blocks.summary, rule.blocks.size)
        earlier = _blocks_before(seq_len, size)
        return _up_to(seq_len) - size * earlier + summary * earlier
    window = min(rule.window or seq_len, seq_len)
    beyond = seq_len - window  # number of queries with earlier keys beyond the window
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
    return n * (n + 1) // 2


def _blocks_before(n: int, size: int) -> int:
    whole, rest = divmod(n, size)
    return size * _up_to(whole - 1) + whole * rest
