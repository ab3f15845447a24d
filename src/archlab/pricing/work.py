"""What a whole model computes and moves in a pass and in a step of training, and its FLOPs per token."""

from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import Literal, TypeVar

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.norm import NoNorm
from archlab.config.components.position import Learned, Sinusoidal
from archlab.config.components.work import (
    FLOAT32_BYTES,
    KINDS,
    OF_MATRICES,
    Counting,
    Operation,
    OperationKind,
    Pass,
    matrix_flops,
)
from archlab.config.core.base import Base
from archlab.config.layers import distinct_layers, final_norm
from archlab.config.model_schema import ModelConfig
from archlab.config.pieces import rows_at_once
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.machine import LARGEST_KEPT
from archlab.pricing.params import parameters, shared_positions

_Key = TypeVar("_Key")

PassName = Literal["training", "prefill", "decoding"]

BACKWARD = 2
"""The backward pass in forward passes: one product for the inputs' gradient and one for the weights'."""

LOSS_FLOPS = 6
"""Per logit: less the largest, exp, summed, divided; of the gradient two more."""

LOSS_NUMBERS = 6
"""Per logit: read, its log-softmax written; the gradient of that written, both read, and that of the logit written."""

OPTIMIZER_FLOPS = 16
"""Per parameter: AdamW's two averages, root, quotient and decay, and the norm that gradients are clipped by."""

OPTIMIZER_NUMBERS = 10
"""Per parameter: weight, gradient and two averages read, three of them written; the gradient read for its norm, and
read and written to be clipped. All in float32."""


class Work(Base):
    """Sums over operations of one kind."""

    kind: OperationKind
    count: int
    """How many operations."""
    flops: float
    weight_bytes: float
    """Of learned numbers, read."""
    kept_bytes: float
    """Of what was kept from earlier passes, read."""
    moved_bytes: float
    """Of activations, gradients and the optimiser's state, read and written."""
    large_bytes: float
    """Of `moved_bytes`, those of operations that make tensors of 32 MiB and more on a CPU: for each of these its C
    library asks the system for memory, which takes longer than to fill it."""

    @classmethod
    def none(cls, kind: OperationKind) -> "Work":
        """Of no operation."""
        return cls(kind=kind, count=0, flops=0, weight_bytes=0, kept_bytes=0, moved_bytes=0, large_bytes=0)

    @property
    def n_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.kept_bytes + self.moved_bytes


def forward(model: ModelConfig, this: Pass, *, logits: str = "all") -> Iterator[Operation]:
    """The operations of a pass; `logits`: of all new tokens, or of each text's `last`."""
    yield from before_layers(model, this)
    for layer, n in distinct_layers(model).items():
        yield from (operation.repeated(n) for operation in layer.work(this))
    yield from after_layers(model, this, this.rows if logits == "all" else this.texts)


def before_layers(model: ModelConfig, this: Pass) -> Iterator[Operation]:
    """Embedding, positions added to it, and its norm."""
    width, d = model.embedding.width or model.d_model, model.d_model
    # The row of a tied matrix is counted where the head reads all of it.
    rows = 0 if model.head.tied else this.rows * width * this.bytes_each
    yield Operation("embedding", "embedding", 0.0, weights=rows, moved=this.rows * width * this.bytes_each)
    if model.embedding.width:
        yield this.product("embedding", width, d)
    if model.embedding.resolve(model.base_width).scale != 1:
        yield this.element_wise("element-wise", "embedding", d, flops=1)
    match model.position:
        case Learned():
            added = this.element_wise("element-wise", "positions", d, flops=1, read=2)
            yield added._replace(weights=this.tokens * d * this.bytes_each)
        case Sinusoidal():
            yield this.element_wise("element-wise", "positions", d, flops=1, read=2)
        case shared:  # a table of biases, if layers share one
            saved = shared.saved_for_scores(this, 1, 1) if shared.is_shared else 0.0
            weights = shared_positions(model) * this.bytes_each
            yield Operation("embedding", "positions", 0.0, weights=weights, saved=saved)
    yield from this.norm(model.norm if model.embedding.norm else NoNorm(), d)
    if model.dropout.embedding:
        yield Operation("element-wise", "embedding", 0.0, saved=this.rows * d * this.stream_bytes)


def after_layers(model: ModelConfig, this: Pass, rows: int) -> Iterator[Operation]:
    """The final norm, and the head of so many rows."""
    yield from this.norm(final_norm(model), model.d_model)
    width, vocab, head = model.embedding.width or model.d_model, model.vocab_size, model.readout
    if model.embedding.width:
        yield this.product("head", model.d_model, width, rows=rows)
    pieces = ceil(rows / rows_at_once(vocab, "cpu"))
    yield this.product("head", width, vocab, bias=vocab * head.bias, rows=rows)._replace(times=pieces)
    scaled = (head.scale != 1) + (3 if head.softcap else 0)
    if scaled:
        moved = 2 * scaled * rows * vocab * this.bytes_each
        made = rows * vocab * this.bytes_each
        yield Operation("element-wise", "head", scaled * rows * vocab, moved=moved, made=made, times=pieces)


def training_step(model: ModelConfig, this: Pass) -> Iterator[Operation]:
    """Forward, loss, backward and the optimiser's update. Nothing is recomputed."""
    for operation in forward(model, this):
        yield operation.repeated(1 + BACKWARD)
    yield loss(model, this)
    yield update(parameters(model).total)


def loss(model: ModelConfig, this: Pass) -> Operation:
    """Of every token, and its gradient."""
    logits = this.rows * model.vocab_size
    pieces, n_bytes = ceil(this.rows / rows_at_once(model.vocab_size, "cpu")), logits * FLOAT32_BYTES
    return Operation("loss", "loss", LOSS_FLOPS * logits, moved=LOSS_NUMBERS * n_bytes, made=n_bytes, times=pieces)


def update(n_parameters: float) -> Operation:
    """AdamW's."""
    moved = OPTIMIZER_NUMBERS * n_parameters * FLOAT32_BYTES
    return Operation("optimiser", "optimiser", OPTIMIZER_FLOPS * n_parameters, moved=moved)


def matrix_flops_per_byte(passed: Iterable[Work]) -> float:
    """Arithmetic intensity (Williams 2009): the FLOPs that a device's peak is of, over all bytes; 0 of nothing."""
    passed = list(passed)
    n_bytes = sum(work.n_bytes for work in passed)
    return sum(work.flops for work in passed if work.kind in OF_MATRICES) / n_bytes if n_bytes else 0.0


def by_kind(operations: Iterable[Operation]) -> list[Work]:
    """Sums, in the order of KINDS; kinds that do not occur are left out."""
    found = _sums(operations, lambda o: o.kind)
    return [found[kind] for kind in KINDS if kind in found]


def products_by_part(operations: Iterable[Operation]) -> dict[str, Work]:
    """Of the products with weights alone, by the parts that components name and the head, in the order of the model."""
    return _sums((o for o in operations if o.kind == "products"), lambda o: o.part)


def _sums(operations: Iterable[Operation], key: Callable[[Operation], _Key]) -> dict[_Key, Work]:
    found: dict[_Key, Work] = {}
    for o in operations:
        if o.flops or o.n_bytes:
            large = o.moved if o.made / o.times >= LARGEST_KEPT else 0.0
            before = found.get(key(o)) or Work.none(o.kind)
            found[key(o)] = Work(
                kind=o.kind,
                count=before.count + o.times,
                flops=before.flops + o.flops,
                weight_bytes=before.weight_bytes + o.weights,
                kept_bytes=before.kept_bytes + o.kept,
                moved_bytes=before.moved_bytes + o.moved,
                large_bytes=before.large_bytes + large,
            )
    return found


class FlopsPerToken(Base):
    """FLOPs per token, averaged over the positions of one sequence: those of the parts that components name, and of
    `head`, from the last hidden state to logits, the same whether tied or not."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @computed_field
    @property
    def total(self) -> float:
        """All of them."""
        return sum(dict(self).values())


def forward_flops(model: ModelConfig, seq_len: int, counting: Counting = "visible") -> FlopsPerToken:
    """FLOPs per token of a forward pass over a sequence of `seq_len` tokens."""
    parts = matrix_flops(forward(model, Pass(1, seq_len, counting=counting)))
    head = parts.pop("head")
    per_token = {part: n / seq_len for part, n in parts.items()}
    return FlopsPerToken(**per_token, head=head / seq_len)  # pyright: ignore[reportCallIssue] - parts are as components name them


def training_flops(model: ModelConfig, seq_len: int, counting: Counting = "visible") -> float:
    """FLOPs per token, forward and backward: 3 times the forward pass; nothing is recomputed."""
    return (1 + BACKWARD) * forward_flops(model, seq_len, counting).total


def computed_training_flops(config: Config) -> float:
    """FLOPs per token that training spends, hidden pairs that are multiplied all the same included."""
    train = resolve_train(config)
    return training_flops(config.model, train.seq_len, "packed" if train.document_mask else "computed")
