"""What a whole model computes and moves in a pass, and in a step of training."""

from collections import Counter
from collections.abc import Iterable, Iterator

from archlab.config.base import Base
from archlab.config.layers import final_norm, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.norm import NoNorm
from archlab.config.position import Learned, Sinusoidal
from archlab.config.work import FLOAT32_BYTES, KINDS, OF_MATRICES, Kind, Operation, Pass
from archlab.cost.params import parameters, shared_positions

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

    kind: Kind
    count: int
    """How many operations."""
    flops: float
    weight_bytes: float
    """Of learned numbers, read."""
    kept_bytes: float
    """Of what was kept from earlier passes, read."""
    moved_bytes: float
    """Of activations, gradients and the optimiser's state, read and written."""

    @property
    def n_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.kept_bytes + self.moved_bytes


def forward(model: ModelConfig, this: Pass, *, logits: str = "all") -> Iterator[Operation]:
    """The operations of a pass; `logits`: of all new tokens, or of each text's `last`."""
    yield from before_layers(model, this)
    for layer, n in Counter(layer_configs(model)).items():
        yield from (operation.repeated(n) for operation in layer.work(this))
    yield from after_layers(model, this, this.rows if logits == "all" else this.texts)


def before_layers(model: ModelConfig, this: Pass) -> Iterator[Operation]:
    """Embedding, positions added to it, and its norm."""
    width, d = model.embedding.width or model.d_model, model.d_model
    # The row of a tied matrix is counted where the head reads all of it.
    rows = 0 if model.head.tied else this.rows * width * this.bytes_each
    yield Operation("embedding", "embedding", 0.0, weights=rows, moved=this.rows * width * this.bytes_each)
    if model.embedding.width:
        yield this.product("head", width, d)
    if model.embedding.resolve(d).scale != 1:
        yield this.element_wise("element-wise", "embedding", d, flops=1)
    match model.position:
        case Learned():
            added = this.element_wise("element-wise", "positions", d, flops=1, read=2)
            yield added._replace(weights=this.tokens * d * this.bytes_each)
        case Sinusoidal():
            yield this.element_wise("element-wise", "positions", d, flops=1, read=2)
        case _:  # a table of biases that all layers share, if any
            yield Operation("embedding", "positions", 0.0, weights=shared_positions(model) * this.bytes_each)
    yield from this.norm(model.norm if model.embedding.norm else NoNorm(), d)


def after_layers(model: ModelConfig, this: Pass, rows: int) -> Iterator[Operation]:
    """The final norm, and the head of so many rows."""
    yield from this.norm(final_norm(model), model.d_model)
    width, vocab, head = model.embedding.width or model.d_model, model.vocab_size, model.head
    if model.embedding.width:
        yield this.product("head", model.d_model, width, rows=rows)
    yield this.product("head", width, vocab, bias=vocab * head.bias, rows=rows)
    scaled = (head.scale != 1) + (3 if head.softcap else 0)
    if scaled:
        moved = 2 * scaled * rows * vocab * this.bytes_each
        yield Operation("element-wise", "head", scaled * rows * vocab, moved=moved)


def training_step(model: ModelConfig, this: Pass) -> Iterator[Operation]:
    """Forward, loss, backward and the optimiser's update. Nothing is recomputed."""
    for operation in forward(model, this):
        yield operation.repeated(1 + BACKWARD)
    yield loss(model, this)
    yield update(parameters(model).total)


def loss(model: ModelConfig, this: Pass) -> Operation:
    """Of every token, and its gradient."""
    logits = this.rows * model.vocab_size
    return Operation("loss", "loss", LOSS_FLOPS * logits, moved=LOSS_NUMBERS * logits * FLOAT32_BYTES)


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
    found: dict[Kind, list[float]] = {}
    for o in operations:
        if o.flops or o.n_bytes:
            numbers = (o.times, o.flops, o.weights, o.kept, o.moved)
            found[o.kind] = [a + b for a, b in zip(found.get(o.kind, (0, 0, 0, 0, 0)), numbers, strict=True)]
    return [
        Work(kind=kind, count=int(n), flops=flops, weight_bytes=weights, kept_bytes=kept, moved_bytes=moved)
        for kind in KINDS
        if kind in found
        for n, flops, weights, kept, moved in [found[kind]]
    ]
