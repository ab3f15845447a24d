"""Division of a sequence into blocks of queries, each compared only with the keys that its queries may see.

Kernels use the blocks. Cost estimates use them, too, to count the computed query-key pairs. For this reason, this
module does not use torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from archlab.config.components.visibility import Visibility, reaches_all

BLOCK = 192
"""Number of queries in a block of a windowed attention. With a window of W tokens, the queries of a block see W + 191
keys in total, and the kernel compares each query with all of them.

From 192 queries on, torch's kernel for CPUs processes 64 queries at a time instead of 32, which makes its backward pass
faster.
"""


@dataclass(frozen=True)
class SharedKeys:
    """Keys that every block sees. Keys are divided into periods of `period` keys, and all keys of a period except its
    first `first` keys are shared. Only keys at positions below `end` count."""

    period: int
    first: int
    end: int

    @property
    def count(self) -> int:
        whole, rest = divmod(self.end, self.period)
        return whole * (self.period - self.first) + max(0, rest - self.first)


@dataclass(frozen=True)
class QueryBlocks:
    """Consecutive blocks of `size` queries each. From one block to the next, the range of keys also moves by `size`
    tokens."""

    first: int
    """Position of the first query of the first block."""
    count: int
    size: int
    first_key: int
    """Position of the first key of the first block."""
    n_keys: int
    """Number of keys of each block, without the shared keys."""
    shared: SharedKeys | None = None
    """Keys that every block sees in addition to its own. If a shared key is also one of the block's own keys, one of
    the two copies is masked."""
    is_alike: bool = True
    """Whether all blocks have the same mask."""
    is_causal: bool = False
    """Whether each query sees exactly the tokens of its block up to itself, so that the kernel needs no mask."""

    @property
    def pairs(self) -> int:
        """Number of query-key pairs that are computed. Causal blocks compute about half of their pairs, because
        fused kernels skip the rest."""
        return self.count * self.size * (self.size + 1) // 2 if self.is_causal else self.all_pairs

    @property
    def all_pairs(self) -> int:
        """Number of query-key pairs if no pair of a block is skipped."""
        return self.size * self.all_keys

    @property
    def all_keys(self) -> int:
        """Total number of keys of all blocks. A key counts once for each block that is compared with it."""
        return self.count * (self.n_keys + (self.shared.count if self.shared else 0))


def query_blocks(rule: Visibility, length: int) -> list[QueryBlocks] | None:
    """Return the blocks of a sequence of `length` tokens without a prefix.

    Return None if blocks would save nothing. This is so if queries can see keys anywhere in the sequence, for example
    with a stride or with two-sided attention without a window.
    """
    is_one_sided = rule.visibility != "two_sided"
    if is_one_sided and reaches_all(rule, length):
        return [_whole(0, 1, length)]
    if rule.blocks is not None:
        return _own_blocks(rule.blocks.size, rule.blocks.summary, length, is_one_sided=is_one_sided)
    if rule.window is None or rule.stride is not None:
        return None
    if is_one_sided:
        return _windows_back(rule.window, rule.global_tokens, length)
    return None if rule.global_tokens else _windows_to_both_sides(rule.window, length)


def is_worth_cutting(rule: Visibility, length: int) -> bool:
    """Return whether the blocks compute at most half of the query-key pairs of a sequence of `length` tokens."""
    blocks = query_blocks(rule, length)
    return blocks is not None and 2 * sum(same_size.pairs for same_size in blocks) <= length**2


def blocks_in_runs(blocks: Sequence[QueryBlocks], runs: Sequence[range]) -> list[QueryBlocks]:
    """Return only the parts of the blocks whose queries are in one of the `runs`, in the order of the runs. A run is a
    range of query positions."""
    return [part for run in runs for block in blocks for part in _of_run(block, run)]


def _of_run(blocks: QueryBlocks, run: range) -> Iterator[QueryBlocks]:
    """Yield the blocks whose queries are all in the run. If a block is only partly in the run, yield a smaller block
    with the queries in the run."""
    size, end = blocks.size, blocks.first + blocks.count * blocks.size
    first, last = max(run.start, blocks.first), min(run.stop, end)
    while first < last:
        n, into = divmod(first - blocks.first, size)
        count = 0 if into else (last - first) // size
        n_queries = count * size or min(size - into, last - first)
        moved = replace(blocks, first=first, first_key=blocks.first_key + n * size)
        if count:
            yield replace(moved, count=count)
        else:
            n_keys = into + n_queries if blocks.is_causal else blocks.n_keys
            yield replace(moved, count=1, size=n_queries, n_keys=n_keys, is_causal=blocks.is_causal and not into)
        first += n_queries


def _whole(first: int, count: int, size: int) -> QueryBlocks:
    return QueryBlocks(first, count, size, first, size, is_causal=True)


def _own_blocks(size: int, summary: int, length: int, *, is_one_sided: bool) -> list[QueryBlocks]:
    count, rest = divmod(length, size)
    stretches = [(0, count, size), (count * size, 1, rest)]
    if is_one_sided and not summary:
        return [_whole(*stretch) for stretch in stretches if all(stretch[1:])]
    shared = SharedKeys(size, size - summary, length) if summary else None
    return [
        QueryBlocks(first, count, size, first, size, shared, is_alike=shared is None)
        for first, count, size in stretches
        if count and size
    ]


def _windows_back(window: int, global_tokens: int, length: int) -> list[QueryBlocks]:
    """Return one block with the first queries, followed by blocks that see only a window of earlier keys and the global
    tokens.

    The first block sees all earlier tokens, because each of them is in the window or a global token.
    """
    head = min(window + max(global_tokens - 1, 0), length)
    first = _whole(0, 1, head) if head <= window else QueryBlocks(0, 1, head, 0, head)
    count, rest = divmod(length - head, BLOCK)
    shared = SharedKeys(global_tokens, 0, global_tokens) if global_tokens else None
    return [first, *_moving(head, count, BLOCK, window, 0, shared), *_moving(length - rest, 1, rest, window, 0, shared)]


def _windows_to_both_sides(window: int, length: int) -> list[QueryBlocks]:
    side = window - 1
    count = max(0, length - 2 * side) // BLOCK
    if not count:
        return [QueryBlocks(0, 1, length, 0, length)]
    end = side + count * BLOCK
    return [
        *([QueryBlocks(0, 1, side, 0, 2 * side)] if side else []),
        *_moving(side, count, BLOCK, window, side, None),
        *([QueryBlocks(end, 1, length - end, end - side, length - end + side)] if end < length else []),
    ]


def _moving(first: int, count: int, size: int, window: int, after: int, shared: SharedKeys | None) -> list[QueryBlocks]:
    n_keys = window - 1 + size + after
    return [QueryBlocks(first, count, size, first - window + 1, n_keys, shared)] if count and size else []
