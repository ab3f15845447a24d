"""Work of a pass, operation by operation: FLOPs and bytes moved.

A multiplication with its addition counts as two FLOPs in a product. In other operations, one operation on one number
counts as one FLOP, also an elementary function (exp, tanh, a division). Bytes are those that each operation reads and
writes once. They assume that no cache keeps data between operations, and that nothing is fused except within one
kernel.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from archlab.config.components.activation import activation_named
from archlab.config.components.norm import AnyNorm

Counting = Literal["visible", "computed", "packed"]
"""Rule of counting. `visible`: the work that the architecture needs. `computed`: the work that the training kernels do,
needed or not. `packed`: like `computed`, but windows hold several documents, so that no two masks are alike."""

OperationKind = Literal[
    "products", "attention", "scans", "convolutions", "softmax", "norms", "activations", "element-wise", "embedding",
    "loss", "optimiser",
]  # fmt: skip
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
"""Kinds of operations. `products`: with weights. `attention`: products of queries, keys and values. `scans`: in
recurrent mixers. `element-wise`: rotations, gates, additions to the stream, reordering of rows."""

FLOAT32_BYTES = 4

OF_MATRICES: tuple[OperationKind, ...] = ("products", "attention", "scans", "convolutions")
"""Kinds of operations that consist of products and their sums. Torch's FlopCounterMode counts these."""


class Operation(NamedTuple):
    """One operation of a forward pass."""

    kind: OperationKind
    part: str
    """Row of the table of FLOPs that it belongs to."""
    flops: float
    weights: float = 0.0
    """Bytes of parameters read."""
    kept: float = 0.0
    """Bytes read of tensors kept from earlier passes: keys and values, states."""
    moved: float = 0.0
    """Bytes of activations read and written."""
    saved: float = 0.0
    """Bytes of activations that training keeps for the backward pass, except those that an earlier operation keeps."""
    made: float = 0.0
    """Part of the bytes in `moved` that belongs to the tensors it creates."""
    times: int = 1
    """Number of operations that this stands for."""

    def repeated(self, n: int) -> "Operation":
        """Return `n` operations like this one."""
        *numbers, times = self[2:]
        return Operation(self.kind, self.part, *(n * number for number in numbers), times=n * times)

    @property
    def n_bytes(self) -> float:
        """Bytes read and written in total."""
        return self.weights + self.kept + self.moved


@dataclass(frozen=True)
class Pass:
    """Forward pass over `texts` texts of `tokens` new tokens each."""

    texts: int
    tokens: int
    held: int = 0
    """Number of tokens of each text that a cache holds already."""
    is_cached: bool = False
    """Whether layers keep the tensors that later passes read."""
    counting: Counting = "visible"
    bytes_each: int = 2
    """Bytes per weight, activation and kept number."""
    is_training: bool = False
    """Whether the stream and its norms are in float32, whatever the other dtypes. In other passes everything has one
    dtype."""

    @property
    def stream_bytes(self) -> int:
        """Bytes per number of the stream."""
        return FLOAT32_BYTES if self.is_training else self.bytes_each

    @property
    def rows(self) -> int:
        """Number of new tokens in all texts."""
        return self.texts * self.tokens

    @property
    def context(self) -> int:
        """Number of tokens of each text after the pass."""
        return self.held + self.tokens

    @property
    def mask_pairs(self) -> int:
        """Pairs of a query and a key in a mask. One mask serves all texts, unless documents are packed."""
        return (self.texts if self.counting == "packed" else 1) * self.tokens * self.context

    def product(
        self, part: str, d_in: int, d_out: int, *, bias: int = 0, rows: int | None = None, shares_input: bool = False
    ) -> Operation:
        """Return the product of every row with a matrix; `bias` is the number of biases.

        Its input is kept for the backward pass. `shares_input` says that an earlier product keeps it already.
        """
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
        """Return the attention of every token to its text up to itself.

        Scores and weights are written to memory, also for hidden pairs. `saved` numbers per pair are kept for the
        backward pass. `kept` is the number of bytes read from a cache.
        """
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
        """Yield a norm over `width` numbers of each row; `weights` is the number of its parameters unless the norm
        derives it from `width`.

        Its input is kept for the backward pass. `shares_input` says that an earlier norm keeps it already.
        """
        if norm.flops_per_number:
            weights = norm.n_parameters(int(width)) if weights is None else weights
            flops, saved = norm.flops_per_number, norm.saved_per_number - shares_input
            yield self.in_stream("norms", "norms", width, flops=flops, weights=weights)._replace(
                saved=saved * self.rows * width * FLOAT32_BYTES
            )

    def activation(self, part: str, name: str, width: float) -> Iterator[Operation]:
        """Yield an activation of `width` numbers of each row."""
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
        """Return an operation with `flops` FLOPs on each of `width` numbers of each row.

        Per number, `read` numbers are read, `written` are written, and `saved` are kept for the backward pass.
        """
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
        """Return an element-wise operation on numbers in the dtype of the stream."""
        operation = self.element_wise(kind, part, width, flops=flops, read=read, weights=weights)
        wider = self.stream_bytes / self.bytes_each
        return operation._replace(moved=operation.moved * wider, made=operation.made * wider)


def matrix_flops(operations: Iterable[Operation]) -> Counter[str]:
    """Return the FLOPs of products and sums of products, by row of the table of FLOPs."""
    flops = Counter[str]()
    for operation in operations:
        if operation.kind in OF_MATRICES:
            flops[operation.part] += operation.flops  # pyright: ignore[reportArgumentType] - floats
    return flops
