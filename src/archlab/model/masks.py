"""Attention masks: the keys that each query sees.

A mask consists of a rule and positions. Each kernel computes only the form of the mask that it needs.

Shapes: B batch (1 if all rows have the same mask), Q queries, S keys.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from archlab.config.components import query_blocks
from archlab.config.components.kernel_choice import MaskKind
from archlab.config.components.query_blocks import QueryBlocks, SharedKeys
from archlab.config.components.visibility import Visibility, visible
from archlab.model.graphs import compiled_once

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Mask(Protocol):
    """Interface through which kernels use a mask."""

    @property
    def dense(self) -> Tensor:
        """Boolean mask, [B, Q, S], true if the query sees the key."""
        ...

    @property
    def tiles(self) -> "BlockMask":
        """The mask as a `BlockMask` for flex_attention."""
        ...

    def all_tiles(self, n_keys: int, device: torch.device) -> "BlockMask":
        """Return tiles of all keys, for a single query. They hide no key, so the scores must contain the mask."""
        ...


def dense(mask_BQS: Mask | None) -> Tensor | None:
    """Return the mask as a tensor; None for a plain causal mask."""
    return None if mask_BQS is None else mask_BQS.dense


def mask_kind(mask_BQS: Mask | None) -> MaskKind:
    """Return which keys the mask hides, as far as its form shows it."""
    return "causal" if mask_BQS is None else "none" if hides_nothing(mask_BQS) else "other"


def hides_nothing(mask_BQS: Mask | None) -> bool:
    return isinstance(mask_BQS, NoMask)


def as_added(mask_BQS: Mask, q_BHQC: Tensor) -> Tensor:
    """Return the mask, [B, Q, S], in the form that is fastest for torch's kernel.

    For several queries, this is the boolean mask. For a single query, it is the mask to add to scores: 0 or -inf in the
    dtype of the query, computed once for all layers. From a boolean mask, torch's kernel would compute it in every
    layer.
    """
    if q_BHQC.shape[2] > 1 or not isinstance(mask_BQS, Visible):
        return mask_BQS.dense
    return mask_BQS.added(q_BHQC.dtype)


@dataclass(frozen=True)
class _Once:
    """Base class of masks that compute each form only once, for all layers that share the mask."""

    _made: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        # functools.cached_property takes a lock in Python 3.11, and torch.compile breaks the graph at a lock.
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def all_tiles(self, n_keys: int, device: torch.device) -> "BlockMask":
        return self._once(f"tiles of {n_keys} keys", lambda: all_tiles(n_keys, device))


@dataclass(frozen=True)
class NoMask(_Once):
    """Mask that hides no key: every query sees every key."""

    n_queries: int
    n_keys: int
    device: torch.device

    @property
    def dense(self) -> Tensor:
        """Boolean mask, [1, Q, S], true everywhere."""
        return torch.ones(1, self.n_queries, self.n_keys, dtype=torch.bool, device=self.device)

    @property
    def tiles(self) -> "BlockMask":
        return self._once("tiles", self._tiles)

    def _tiles(self) -> "BlockMask":
        return _tiles(lambda b, h, q, k: k >= 0, 1, self.n_queries, self.n_keys, self.device)


@dataclass(frozen=True)
class TensorMask(_Once):
    """Mask that is already a tensor."""

    dense: Tensor
    """Boolean mask, [B, Q, S], true if the query sees the key."""

    @property
    def tiles(self) -> "BlockMask":
        return self._once("tiles", self._tiles)

    def _tiles(self) -> "BlockMask":
        n_rows, n_queries, n_keys = self.dense.shape
        dense = pad_to_tiles(pad_to_tiles(self.dense, 1), 2)
        return _tiles(lambda b, h, q, k: dense[row_of(dense, b), q, k], n_rows, n_queries, n_keys, dense.device)


@dataclass(frozen=True)
class Stretch:
    """Neighboring blocks of the same size, and the mask of the keys that their queries see."""

    blocks: QueryBlocks
    mask: TensorMask | None
    """Mask, [count or 1, size, S]. The S keys are the shared keys, followed by the block's own keys.

    None means that every block is plain causal.
    """
    shared: Tensor | None
    """Indices of the keys that all blocks share; None without shared keys."""


@dataclass(frozen=True)
class Visible(_Once):
    """Mask that is computed from positions and a rule, such as causal with a sliding window."""

    rule: Visibility
    query_BQ: Tensor
    """Positions of the queries; negative for padding."""
    key_BS: Tensor
    prefix_B11: Tensor | None = None
    """Length of each sequence's prefix; None without prefixes. Prefix tokens see each other if the rule is `prefix`."""
    starts_BQ: Tensor | None = None
    """For each query, the index of its document's first token. None if documents are not packed."""
    is_whole: bool = False
    """Whether every row is one whole sequence or several whole documents.

    If so, nothing is cached or padded, and the queries belong to the same tokens as the keys.
    """
    key_starts_BS: Tensor | None = None
    """Same as `starts_BQ`, but for the keys. None if queries and keys belong to the same tokens."""
    runs: tuple[range, ...] | None = None
    """Indices of the queries in the sequence if this process has only some of its tokens; otherwise None.

    The keys are all tokens of the sequence.
    """

    @property
    def dense(self) -> Tensor:
        """Boolean mask, [B, Q, S], true if the query sees the key."""
        return self._once("dense", self._dense)

    def added(self, dtype: torch.dtype) -> Tensor:
        """Return the mask to add to scores, [B, Q, S]: 0 if the query sees the key, otherwise -inf."""
        return self._once(f"added, {dtype}", lambda: torch.where(self.dense, 0.0, float("-inf")).to(dtype))

    @property
    def tiles(self) -> "BlockMask":
        """The mask as a `BlockMask` for flex_attention."""
        return self._once("tiles", self._tiles)

    @property
    def stretches(self) -> list[Stretch]:
        """The mask, cut into blocks of queries. A row must not contain tokens of several sequences."""
        return self._once("stretches", self._stretches)

    @property
    def documents(self) -> list[tuple[int, list[Stretch]]]:
        """The mask of packed documents, cut into pieces: (length, blocks) of each piece, row after row.

        A piece is a document, or several short documents in a row. Pieces do not see each other.
        """
        return self._once("documents", self._documents)

    @property
    def can_be_cut(self) -> bool:
        """Whether `stretches` or `documents` can be computed.

        They cannot if tokens are cached or padded, or if there is a prefix whose tokens see each other.
        """
        is_text = self.is_whole or (self.runs is not None and self.starts_BQ is None)
        return is_text and (self.prefix_B11 is None or self.rule.visibility != "prefix")

    @property
    def is_worth_cutting(self) -> bool:
        """Whether attention in blocks saves enough work.

        For whole sequences, the blocks must leave out at least half of the query/key pairs. If this process has only
        some tokens of a sequence, leaving out any pair is enough, because no kernel can use a plain causal mask. For
        packed documents, the answer depends only on the row length, because reading document boundaries would
        synchronize the device.
        """
        return self._once("is_worth_cutting", self._is_worth_cutting)

    def prepare(self, *, is_biased: bool) -> None:
        """Compute the form of the mask that the kernel chosen by `auto` needs, once for all layers.

        Otherwise each layer would compute it in its compiled graph. Forms that depend on data, and the form for
        flex_attention, are computed outside of graphs anyway.
        """
        is_cut = self.is_worth_cutting and not is_biased
        if is_cut and self.starts_BQ is None:
            self._once("stretches", self._stretches)
        elif not is_cut and self.query_BQ.device.type == "cpu":
            self._once("dense", self._dense)

    def _is_worth_cutting(self) -> bool:
        length = self.query_BQ.shape[1]
        if not self.can_be_cut:
            return False
        if self.starts_BQ is not None:
            return length >= 2 * query_blocks.BLOCK
        if self.runs is not None:
            return sum(s.blocks.pairs for s in self.stretches) < length * self.key_BS.shape[1]
        return query_blocks.is_worth_cutting(self.rule, length)

    def _dense(self) -> Tensor:
        all_ = slice(None)
        return self._seen((all_, all_, None), (all_, None, all_), self.prefix_B11)

    def _tiles(self) -> "BlockMask":
        n_rows = max(len(self.query_BQ), len(self.key_BS), 1 if self.prefix_B11 is None else len(self.prefix_B11))
        whole = replace(
            self,
            query_BQ=pad_to_tiles(self.query_BQ, 1),
            key_BS=pad_to_tiles(self.key_BS, 1),
            starts_BQ=None if self.starts_BQ is None else pad_to_tiles(self.starts_BQ, 1),
            key_starts_BS=None if self.key_starts_BS is None else pad_to_tiles(self.key_starts_BS, 1),
        )

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            prefix = None if whole.prefix_B11 is None else whole.prefix_B11[row_of(whole.prefix_B11, row), 0, 0]
            return whole._seen((row_of(whole.query_BQ, row), query), (row_of(whole.key_BS, row), key), prefix)

        return _tiles(sees, n_rows, self.query_BQ.shape[1], self.key_BS.shape[1], self.query_BQ.device)

    def _seen(self, queries: tuple[Any, ...], keys: tuple[Any, ...], prefix: Tensor | None) -> Tensor:
        query, key = self.query_BQ[queries], self.key_BS[keys]
        seen = visible(self.rule, query, key, 0 if prefix is None else prefix)
        if self.starts_BQ is not None:
            key_starts_BS = self.starts_BQ if self.key_starts_BS is None else self.key_starts_BS
            return seen & (self.starts_BQ[queries] == key_starts_BS[keys])
        # A padding token sees only itself, because a softmax over no keys is NaN. Empty slots come before all tokens.
        return (seen & (key >= 0)) | (key == query)

    def _stretches(self) -> list[Stretch]:
        return stretches(self.rule, self.key_BS.shape[1], self.query_BQ.device, self.runs)

    def _documents(self) -> list[tuple[int, list[Stretch]]]:
        assert self.starts_BQ is not None
        device, of_length = self.starts_BQ.device, dict[int, list[Stretch]]()
        pieces = list[tuple[int, list[Stretch]]]()
        first = 0
        for length, n in _pieces(self.starts_BQ):
            if n == 1:
                if length not in of_length:
                    of_length[length] = stretches(self.rule, length, device)
                pieces.append((length, of_length[length]))
            else:
                row, start = divmod(first, self.starts_BQ.shape[1])
                at = slice(start, start + length)
                mask = self._seen((slice(row, row + 1), at, None), (slice(row, row + 1), None, at), None)
                pieces.append((length, [Stretch(QueryBlocks(0, 1, length, 0, length), TensorMask(mask), None)]))
            first += length
        return pieces


def _pieces(starts_BQ: Tensor) -> Iterator[tuple[int, int]]:
    B, Q = starts_BQ.shape
    is_first_BQ = starts_BQ == torch.arange(Q, device=starts_BQ.device)
    firsts = is_first_BQ.flatten().nonzero()[:, 0].tolist()
    tokens = documents = 0
    for first, end in zip(firsts, [*firsts[1:], B * Q], strict=True):
        is_long = end - first >= query_blocks.BLOCK
        if documents and (is_long or first % Q == 0):
            yield tokens, documents
            tokens = documents = 0
        tokens, documents = tokens + end - first, documents + 1
        if tokens >= query_blocks.BLOCK:
            yield tokens, documents
            tokens = documents = 0
    if documents:
        yield tokens, documents


def stretches(
    rule: Visibility, length: int, device: torch.device, runs: tuple[range, ...] | None = None
) -> list[Stretch]:
    """Return the blocks of one sequence without a prefix.

    With `runs`, return only the blocks whose queries have these indices in the sequence.
    """
    blocks = query_blocks.query_blocks(rule, length) or [QueryBlocks(0, 1, length, 0, length)]
    selected = blocks if runs is None else query_blocks.blocks_in_runs(blocks, runs)
    return [_stretch(rule, of_one_size, device) for of_one_size in selected]


def _stretch(rule: Visibility, blocks: QueryBlocks, device: torch.device) -> Stretch:
    if blocks.is_causal:
        return Stretch(blocks, None, None)
    n = 1 if blocks.is_alike else blocks.count
    moved_N11 = torch.arange(n, device=device)[:, None, None] * blocks.size
    query_NQ1 = blocks.first + moved_N11 + torch.arange(blocks.size, device=device)[:, None]
    first_N11 = blocks.first_key + moved_N11
    seen_NQS = visible(rule, query_NQ1, first_N11 + torch.arange(blocks.n_keys, device=device))
    if blocks.shared is None:
        return Stretch(blocks, TensorMask(seen_NQS), None)
    shared = _indices(blocks.shared, device)
    is_own_N1S = (shared >= first_N11) & (shared < first_N11 + blocks.n_keys)
    seen_of_shared_NQS = visible(rule, query_NQ1, shared) & ~is_own_N1S
    return Stretch(blocks, TensorMask(torch.cat((seen_of_shared_NQS, seen_NQS), -1)), shared)


def _indices(keys: SharedKeys, device: torch.device) -> Tensor:
    starts = torch.arange(0, keys.end, keys.period, device=device)
    indices = starts[:, None] + torch.arange(keys.first, keys.period, device=device)
    return indices.flatten()[: keys.count]


TILE = 128
"""Number of queries, and of keys, in a tile of flex_attention."""


def padded_length(length: int, device: torch.device) -> int:
    """Return the number of queries or keys that flex_attention reads for `length` of them.

    On a GPU, this is a multiple of TILE. Texts of different lengths can then use the same compiled code.
    """
    return -length % TILE + length if device.type == "cuda" else length


def pad_to_tiles(x: Tensor, dim: int) -> Tensor:
    """Return x with its last entry along `dim` repeated, up to the length that flex_attention reads."""
    extra = padded_length(x.shape[dim], x.device) - x.shape[dim]
    return x if extra == 0 else torch.cat((x, x.narrow(dim, -1, 1).repeat_interleave(extra, dim)), dim)


@lru_cache(maxsize=8)
@torch.inference_mode(mode=False)  # training can use the result, too
def causal_tiles(n_queries: int, n_keys: int, device: torch.device) -> "BlockMask":
    """Return the plain causal mask as a `BlockMask` for flex_attention. It is made once for all layers and steps."""
    return _tiles(lambda b, h, q, k: k <= q, 1, n_queries, n_keys, device)


def all_tiles(n_keys: int, device: torch.device) -> "BlockMask":
    """Return tiles of all keys, for a single query. None of them hides a key."""
    from torch.nn.attention.flex_attention import BlockMask

    n = -(-n_keys // TILE)
    numbers = torch.arange(n, dtype=torch.int32, device=device)[None, None, None]
    count = torch.full_like(numbers[..., 0], n)
    return BlockMask.from_kv_blocks(count, numbers, BLOCK_SIZE=TILE, seq_lengths=(1, n_keys))


def _tiles(
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    n_rows: int,
    n_queries: int,
    n_keys: int,
    device: torch.device,
) -> "BlockMask":
    """Return the tiles that contain a visible key. `sees` also answers for what is added to make the tiles whole.

    Added queries are like the last one. No query sees an added key.

    On a GPU, the code is compiled, so that the whole [Q, S] mask is never materialized. On a CPU, the compiled code
    would fail.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    create = create_block_mask if device.type == "cpu" else compiled_once(create_block_mask)
    whole_queries, whole_keys = padded_length(n_queries, device), padded_length(n_keys, device)
    sees_key = sees if whole_keys == n_keys else _before_key(sees, torch.full((), n_keys, device=device))
    return create(sees_key, n_rows, None, whole_queries, whole_keys, device=device)


def _before_key(sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], n_keys: Tensor) -> Callable[..., Tensor]:
    """Return a mask without the keys from the index `n_keys` on. The index is a tensor, because compiled code would
    contain a number, and each number would be compiled."""
    return lambda b, h, q, k: sees(b, h, q, k) & (k < n_keys)


def row_of(x: Tensor, row: Tensor) -> Tensor:
    """Return `row`, or 0 if x has a single row for the whole batch."""
    return row if len(x) > 1 else torch.zeros_like(row)
