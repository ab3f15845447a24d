"""Work of a pass, operation by operation: FLOPs and bytes moved.

In matrix products, a multiplication and the addition of its result count as two FLOPs. In other operations, each
operation on one element counts as one FLOP, including divisions and elementary functions such as exp or tanh. Each
operation reads its inputs and writes its outputs once. This assumes that no hardware cache keeps data between
operations, and that operations are fused only within one kernel.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from archlab.config.components.activation import activation_named
from archlab.config.components.norm import AnyNorm

Counting = Literal["visible", "computed", "packed"]
"""Way to count work. `visible`: the work that the architecture needs. `computed`: the work that the training kernels
do, including unnecessary work. `packed`: like `computed`, but each sequence consists of several packed documents, so
that each sequence has its own mask."""

OperationKind = Literal[
    "products", "attention", "scans", "convolutions", "softmax", "norms", "activations", "element-wise", "embedding",
    "loss", "optimiser",
]  # fmt: skip
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
"""Kinds of operations. `products`: products with weight matrices. `attention`: products of queries and keys, and of
attention weights and values. `scans`: scans of recurrent mixers. `element-wise`: rotations, gates, additions to the
stream, reordering of rows."""

FLOAT32_BYTES = 4

OF_MATRICES: tuple[OperationKind, ...] = ("products", "attention", "scans", "convolutions")
"""Kinds of operations that are matrix products or other sums of products. Torch's FlopCounterMode counts these."""


class Operation(NamedTuple):
    """One operation of a forward pass."""

    kind: OperationKind
    part: str
    """Row of the FLOP table to which the operation belongs."""
    flops: float
    weights: float = 0.0
    """Bytes of parameters that the operation reads."""
    kept: float = 0.0
    """Bytes read from tensors that earlier passes stored, such as keys and values, or the states of mixers."""
    moved: float = 0.0
    """Bytes of activations that the operation reads and writes."""
    saved: float = 0.0
    """Bytes of activations that training stores for the backward pass, except those that an earlier operation
    stores."""
    made: float = 0.0
    """Bytes of the tensors that the operation creates. They are included in `moved`."""
    times: int = 1
    """Number of identical operations that this one represents."""

    def repeated(self, n: int) -> "Operation":
        """Return one operation with the total costs of `n` operations like this one."""
        *numbers, times = self[2:]
        return Operation(self.kind, self.part, *(n * number for number in numbers), times=n * times)

    @property
    def n_bytes(self) -> float:
        return self.weights + self.kept + self.moved


@dataclass(frozen=True)
class Pass:
    """Forward pass over `texts` sequences of `tokens` new tokens each."""

    texts: int
    tokens: int
    n_cached: int = 0
    """Number of tokens of each sequence that are already in a cache."""
    is_cached: bool = False
    """Whether layers use a cache, which keeps keys, values and states for later passes."""
    counting: Counting = "visible"
    bytes_each: int = 2
    """Bytes per element of weights, activations and cached tensors."""
    is_training: bool = False
    """Whether this is a training pass. In a training pass, the residual stream and its norms are in float32. In other
    passes, all tensors have the same dtype."""
    source: int = 0
    """Number of tokens in the source text of each sequence, which the encoder reads. 0 without an encoder."""
    predicted: float | None = None
    """Mean number of tokens of each sequence that get logits in training. None: all new tokens."""

    @property
    def logit_rows(self) -> float:
        """Number of tokens that get logits in training, in all sequences together."""
        return self.rows if self.predicted is None else self.texts * self.predicted

    @property
    def reads_source(self) -> bool:
        """Whether the encoder reads the source texts in this pass. In later passes, the cache holds their keys and
        values."""
        return self.source > 0 and not self.n_cached

    @property
    def of_source(self) -> "Pass":
        """The encoder's pass over the source texts, which needs no cache. It has no tokens if this pass does not read
        the source texts."""
        tokens = self.source if self.reads_source else 0
        return replace(self, tokens=tokens, n_cached=0, is_cached=False, source=0)

    @property
    def stream_bytes(self) -> int:
        return FLOAT32_BYTES if self.is_training else self.bytes_each

    @property
    def rows(self) -> int:
        """Number of new tokens in all sequences together."""
        return self.texts * self.tokens

    @property
    def context(self) -> int:
        """Number of tokens of each sequence after the pass."""
        return self.n_cached + self.tokens

    @property
    def mask_pairs(self) -> int:
        """Number of query-key pairs in the masks. One mask serves all sequences, unless documents are packed."""
        return (self.texts if self.counting == "packed" else 1) * self.tokens * self.context

    def product(
        self, part: str, d_in: int, d_out: int, *, bias: int = 0, rows: float | None = None, shares_input: bool = False
    ) -> Operation:
        """Return the multiplication of each row by a matrix of shape [d_in, d_out]. `bias` is the number of bias
        elements.

        The input is stored for the backward pass, unless `shares_input` says that an earlier multiplication stores it.
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
        """Return the operation of causal attention, in which every token attends to itself and to all earlier tokens.

        Scores and attention weights are written to memory for all query-key pairs, including hidden ones. `saved` is
        the number of values per pair that are stored for the backward pass. `kept` is the number of bytes read from a
        cache.
        """
        visible = self.tokens * (self.n_cached + (self.tokens + 1) / 2)
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
        """Yield the operation of a norm over `width` features of each row. `weights` is the number of parameters of the
        norm; None derives it from `width`.

        The input of the norm is stored for the backward pass, unless `shares_input` says that an earlier norm stores
        it.
        """
        if norm.flops_per_number:
            weights = norm.n_parameters(int(width)) if weights is None else weights
            flops, saved = norm.flops_per_number, norm.saved_per_number - shares_input
            yield self.in_stream("norms", "norms", width, flops=flops, weights=weights)._replace(
                saved=saved * self.rows * width * FLOAT32_BYTES
            )

    def activation(self, part: str, name: str, width: float) -> Iterator[Operation]:
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
        """Return an element-wise operation with `flops` FLOPs per element, on `width` elements of each row.

        `read`, `written` and `saved` are the numbers of values per element that are read, written, and stored for the
        backward pass.
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
        """Return an element-wise operation on elements in the dtype of the residual stream."""
        operation = self.element_wise(kind, part, width, flops=flops, read=read, weights=weights)
        wider = self.stream_bytes / self.bytes_each
        return operation._replace(moved=operation.moved * wider, made=operation.made * wider)


def matrix_flops(operations: Iterable[Operation]) -> Counter[str]:
    """Return the FLOPs of matrix products and other sums of products, by row of the FLOP table."""
    flops = Counter[str]()
    for operation in operations:
        if operation.kind in OF_MATRICES:
            flops[operation.part] += operation.flops  # pyright: ignore[reportArgumentType] - floats
    return flops
