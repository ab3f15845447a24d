"""Which key a query sees: masks, caches and FLOP counts all ask here.

Positions count from the start of the sequence (of the document, where several are packed). Without torch at run time,
so that costs can be counted quickly: the arithmetic is that of tensors and arrays.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field

from archlab.config.core.base import Index, Length, Settings

if TYPE_CHECKING:
    from torch import Tensor

    Positions = TypeVar("Positions", Tensor, np.ndarray)


class BlockSparse(Settings):
    """Fixed sparse attention (Child 2019): the own block so far, and the last keys of every earlier block."""

    size: Length
    """Tokens per block."""
    summary: Index
    """Last keys of an earlier block that later queries see; 0: none, so that blocks are chunks (Llama 4)."""


class Visibility(Settings):
    """The fields of an attention that say which keys a query sees: to which side, and how far."""

    visibility: Literal["causal", "prefix", "two_sided"] = "causal"
    """causal: a query sees its own key and those before it; prefix: also those after it within the text's prefix, whose
    length each pass is given (prefix LM, Raffel 2020); two_sided: those after it too, as in an encoder."""
    window: Length | None = None
    """A query sees the keys at distance < window, its own included, to each side that it sees at all. null: all."""
    stride: Annotated[Index, Field(ge=2)] | None = None
    """Beyond the window, keys at distances divisible by it are seen too (dilated). null: none."""
    global_tokens: Index = 0
    """The first tokens of a sequence, which see all and are seen by all, window or not (Longformer)."""
    blocks: BlockSparse | None = None
    """Fixed sparse blocks instead of a window. null: none."""

    def describe_visibility(self) -> str:
        """The window, and to which sides where not back only."""
        sides = "" if self.visibility == "causal" else f"{self.visibility} "
        return f"{sides}{self.window or ('' if sides else '-')}".strip()


def visible(rule: Visibility, query: "Positions", key: "Positions", prefix: "Positions | int" = 0) -> "Positions":
    """Boolean, true where the query at one position sees the key at another; all broadcast. `prefix` is how many first
    tokens of the text see each other both ways, under a rule that says so."""
    if rule.visibility == "two_sided":
        return _in_reach(rule, query, key)
    faces = query >= key
    if rule.visibility == "prefix":
        faces = faces | (key < prefix)  # a later query has all of the prefix before it
    if rule.window is None and rule.blocks is None:
        return faces  # pyright: ignore[reportReturnType]
    return faces & _in_reach(rule, query, key)  # pyright: ignore[reportReturnType, reportOperatorIssue]


def _in_reach(rule: Visibility, query: "Positions", key: "Positions") -> "Positions":
    """Whether the key is near enough, to whatever side."""
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
    """Whether within seq_len tokens every query sees every key before it, and none after it."""
    return rule.visibility == "causal" and reaches_all(rule, seq_len)


def reaches_all(rule: Visibility, seq_len: int) -> bool:
    """Whether within seq_len tokens every key is near enough to every query, to the sides that it sees."""
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
    """(query, key) pairs in a sequence of seq_len tokens without a prefix; equals the mask counted, without making
    one."""
    before = _pairs_before(rule, seq_len)
    if rule.visibility != "two_sided":
        return before
    if rule.blocks is None or not rule.blocks.summary:
        return 2 * before - seq_len  # who sees whom is the same to both sides, and each sees itself once
    size, summary = rule.blocks.size, rule.blocks.summary
    blocks, rest = divmod(seq_len, size)
    summaries_in_rest = max(0, rest - (size - summary))
    own = blocks * size**2 + rest**2
    of_others = (seq_len - size) * blocks * summary + (seq_len - rest) * summaries_in_rest
    return own + of_others


def _pairs_before(rule: Visibility, seq_len: int) -> int:
    """Those whose key is not after the query."""
    if rule.blocks is not None:
        size, summary = rule.blocks.size, min(rule.blocks.summary, rule.blocks.size)
        earlier = _blocks_before(seq_len, size)
        return _up_to(seq_len) - size * earlier + summary * earlier
    window = min(rule.window or seq_len, seq_len)
    beyond = seq_len - window  # queries that see a whole window and have keys behind it
    pairs = _up_to(window) + beyond * window
    # Queries that have fewer keys behind the window than there are global ones, or just as many.
    few = min(rule.global_tokens, beyond)
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
