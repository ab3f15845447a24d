"""What a pass computes and what it moves, operation by operation.

FLOPs of a product are two for each multiplication with its addition. Elsewhere an operation on one number is one, an
elementary function too (exp, tanh, a division). Bytes are those that an operation by itself reads and writes once, as
if nothing stayed in a cache between two operations and nothing were fused but what one kernel does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from archlab.config.components.activation import activation_named
from archlab.config.components.norm import AnyNorm

Counting = Literal["visible", "computed", "packed"]
"""Which work is counted. visible: what the architecture asks for. computed: what training's kernels multiply, needed
or not. packed: the same where a window holds several documents, so that its mask is like no other."""

OperationKind = Literal[
    "products", "attention", "scans", "convolutions", "softmax", "norms", "activations", "element-wise", "embedding",
    "loss", "optimiser",
]  # fmt: skip
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
"""products: with weights. attention: of queries, keys and values. scans: of recurrent mixers. element-wise: rotations,
gates, sums with the stream, rows that are put in another order."""

FLOAT32_BYTES = 4

OF_MATRICES: tuple[OperationKind, ...] = ("products", "attention", "scans", "convolutions")
"""The kinds whose FLOPs are products and their sums: what torch's FlopCounterMode counts."""


class Operation(NamedTuple):
    """One operation of a pass, forward."""

    kind: OperationKind
    part: str
    """What the component calls it, in a table of FLOPs."""
    flops: float
    weights: float = 0.0
    """Bytes of learned numbers that are read."""
    kept: float = 0.0
    """Bytes read of what was kept from earlier passes: keys and values, states."""
    moved: float = 0.0
    """Bytes of activations that are read and written."""
    saved: float = 0.0
    """Bytes of activations that training keeps for the backward pass and no operation before has kept."""
    made: float = 0.0
    """Of the bytes in `moved`, those of the tensors that it makes."""
    times: int = 1
    """How many operations these are together."""

    def repeated(self, n: int) -> "Operation":
        """So many like this one."""
        *numbers, times = self[2:]
        return Operation(self.kind, self.part, *(n * number for number in numbers), times=n * times)

    @property
    def n_bytes(self) -> float:
        """All that is read and written."""
        return self.weights + self.kept + self.moved


@dataclass(frozen=True)
class Pass:
    """A forward pass over `texts` texts of `tokens` new tokens each."""

    texts: int
    tokens: int
    held: int = 0
    """Tokens of each text that a cache holds already."""
    is_cached: bool = False
    """Whether layers keep what later passes read."""
    counting: Counting = "visible"
    bytes_each: int = 2
    """Of a weight, an activation and a number kept."""
    is_training: bool = False
    """Whether the stream and its norms are in float32 whatever the rest is; in other passes all is of one format."""

    @property
    def stream_bytes(self) -> int:
        """Of a number of the stream."""
        return FLOAT32_BYTES if self.is_training else self.bytes_each

    @property
    def rows(self) -> int:
        """New tokens in all."""
        return self.texts * self.tokens

    @property
    def context(self) -> int:
        """Tokens of each text after the pass."""
        return self.held + self.tokens

    @property
    def mask_pairs(self) -> int:
        """Pairs of a query and a key in a mask. One mask serves all texts, unless documents are packed."""
        return (self.texts if self.counting == "packed" else 1) * self.tokens * self.context

    def product(
        self, part: str, d_in: int, d_out: int, *, bias: int = 0, rows: int | None = None, shares_input: bool = False
    ) -> Operation:
        """Of every row with a matrix; `bias`: numbers beside it. Its input is kept for the backward pass, unless it is
        an earlier product's, too."""
        rows = self.rows if rows is None else rows
        return Operation(
            "products",
            part,
            flops=2 * rows * d_in * d_out,
            weights=(d_in * d_out + bias) * self.bytes_each,
            moved=rows * (d_in + d_out) * self.bytes_each,
            saved=0 if shares_input else rows * d_in * self.bytes_each,
            made=rows * d_out * self.bytes_each,
        )

    def attention(self, part: str, n_heads: int, head_dim: int, *, kept: float = 0, saved: float = 1) -> Operation:
        """Every token's queries with the keys of its text up to its own, and as many values. Scores and weights are
        written out, for pairs that are hidden too, and of each `saved` numbers are kept for the backward pass. `kept`:
        bytes read of what a cache holds."""
        visible = self.tokens * (self.held + (self.tokens + 1) / 2)
        whole = self.texts * n_heads * self.tokens * self.context
        width = n_heads * head_dim
        return Operation(
            "attention",
            part,
            flops=4 * head_dim * (self.texts * n_heads * visible if self.counting == "visible" else whole),
            kept=kept,
            moved=(4 * self.rows * width + 4 * whole) * self.bytes_each,
            saved=(3 * self.rows * width + saved * whole) * self.bytes_each,
            made=(self.rows * width + 2 * whole) * self.bytes_each,
        )

    def norm(
        self, norm: AnyNorm, width: float, weights: int | None = None, *, shares_input: bool = False
    ) -> Iterator[Operation]:
        """Over `width` numbers of each row; `weights`: its learned numbers, where it has not as many as it is wide. Its
        input is kept for the backward pass, unless it is an earlier norm's, too."""
        if norm.flops_per_number:
            weights = norm.n_parameters(int(width)) if weights is None else weights
            flops, saved = norm.flops_per_number, norm.saved_per_number - shares_input
            yield self.in_stream("norms", "norms", width, flops=flops, weights=weights)._replace(
                saved=saved * self.rows * width * FLOAT32_BYTES
            )

    def activation(self, part: str, name: str, width: float) -> Iterator[Operation]:
        """Of `width` numbers of each row."""
        activation = activation_named(name)
        if activation.flops_per_number:
            flops, weights = activation.flops_per_number, activation.n_parameters
            bytes_kept = FLOAT32_BYTES if activation.computes_in_float32 else self.bytes_each
            yield self.element_wise("activations", part, width, flops=flops, weights=weights)._replace(
                saved=activation.saved_per_number * self.rows * width * bytes_kept
            )

    def element_wise(
        self,
        kind: OperationKind,
        part: str,
        width: float,
        *,
        flops: float,
        read: float = 1,
        written: float = 1,
        weights: int = 0,
        saved: float = 0,
    ) -> Operation:
        """On each of `width` numbers of each row `flops`; for each, `read` numbers are read, `written` written, and
        `saved` kept for the backward pass."""
        numbers = self.rows * width
        return Operation(
            kind,
            part,
            flops=flops * numbers,
            weights=weights * self.bytes_each,
            moved=(read + written) * numbers * self.bytes_each,
            saved=saved * numbers * self.bytes_each,
            made=written * numbers * self.bytes_each,
        )

    def in_stream(
        self, kind: OperationKind, part: str, width: float, *, flops: float, read: float = 1, weights: int = 0
    ) -> Operation:
        """As `element_wise`, of numbers in the stream's format."""
        own = self.element_wise(kind, part, width, flops=flops, read=read, weights=weights)
        wider = self.stream_bytes / self.bytes_each
        return own._replace(moved=own.moved * wider, made=own.made * wider)


def matrix_flops(operations: Iterable[Operation]) -> Counter[str]:
    """FLOPs of products and sums of products by part."""
    found = Counter[str]()
    for operation in operations:
        if operation.kind in OF_MATRICES:
            found[operation.part] += operation.flops  # pyright: ignore[reportArgumentType] - floats
    return found
