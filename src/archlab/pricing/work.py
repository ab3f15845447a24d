"""Operations of a whole model in a pass or in a training step, with their FLOPs and bytes; and FLOPs per token."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import Literal, TypeVar

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.norm import BlockNorm, NoNorm
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
from archlab.config.layers import distinct_layers, final_norm, layer_configs
from archlab.config.lora import Lora
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW, Optimizer
from archlab.config.pieces import rows_at_once
from archlab.config.schema import Config
from archlab.config.training import resolve_train, tokens_predicted, tokens_read
from archlab.machine import LARGEST_KEPT
from archlab.pricing.lora import added_matrices, added_parameters, frozen, layers_with_lora
from archlab.pricing.params import before_head, matrix_shapes, parameters, positions_of_stack, widening
from archlab.pricing.source import source_tokens, stack_passes
from archlab.pricing.update import update

_Key = TypeVar("_Key")

PassName = Literal["training", "prefill", "decoding"]

BACKWARD = 2
"""FLOPs of the backward pass, divided by those of the forward pass. For each matrix product, the backward pass computes
two: one for the gradient of the inputs, and one for the gradient of the weights."""

LOSS_FLOPS = 6
"""FLOPs of the loss per logit. Forward pass: subtract the maximum, exp, sum, divide. Backward pass: 2 FLOPs."""

LOSS_NUMBERS = 6
"""Number of float32 values that the loss reads or writes per logit.

Forward pass (2): the logit is read, and its log-softmax is written. Backward pass (4): the gradient of the log-softmax
is written and read, the log-softmax is read, and the gradient of the logit is written.
"""


class Work(Base):
    """Totals over all operations of one kind in a pass."""

    kind: OperationKind
    count: int
    """Number of operations."""
    flops: float
    weight_bytes: float
    """Bytes of weights that are read."""
    kept_bytes: float
    """Bytes read from caches and recurrent states that were written in earlier passes."""
    moved_bytes: float
    """Bytes of activations, gradients and optimizer state that are read or written."""
    large_bytes: float
    """Part of `moved_bytes`: bytes that belong to operations that create tensors of at least 32 MiB.

    On a CPU, the C library requests new memory from the operating system for each of these tensors. This takes longer
    than writing the values.
    """

    @classmethod
    def none(cls, kind: OperationKind) -> "Work":
        return cls(kind=kind, count=0, flops=0, weight_bytes=0, kept_bytes=0, moved_bytes=0, large_bytes=0)

    @property
    def n_bytes(self) -> float:
        return self.weight_bytes + self.kept_bytes + self.moved_bytes


def forward(model: ModelConfig, model_pass: Pass, *, logits: str = "all") -> Iterator[Operation]:
    """Yield the operations of a forward pass.

    `logits` is `all` if all tokens that `model_pass.predicted` counts get logits, or `last` if only the last token of
    each sequence does.
    """
    for stack, own_pass in stack_passes(model, model_pass):
        if stack is not model:
            yield from encoder_work(model, stack, own_pass)
            continue
        yield from before_layers(model, model_pass)
        for layer, n in distinct_layers(model).items():
            yield from (operation.repeated(n) for operation in layer.work(model_pass))
    yield from after_layers(model, model_pass, model_pass.logit_rows if logits == "all" else model_pass.texts)


def encoder_work(model: ModelConfig, encoder: ModelConfig, of_source: Pass) -> Iterator[Operation]:
    """Yield the operations of the model's encoder over the source texts. All belong to the row `encoder`."""
    layers = (
        operation.repeated(n) for layer, n in distinct_layers(encoder).items() for operation in layer.work(of_source)
    )
    for operation in chain(before_encoder(model, encoder, of_source), layers, after_encoder(encoder, of_source)):
        yield operation._replace(part="encoder")


def around_layers(model: ModelConfig, model_pass: Pass) -> Iterator[Operation]:
    """Yield the operations before the layers. If the model has an encoder, also yield those before and after the layers
    of the encoder."""
    for stack, own_pass in stack_passes(model, model_pass):
        if stack is model:
            yield from before_layers(model, model_pass)
        else:
            yield from before_encoder(model, stack, own_pass)
            yield from after_encoder(stack, own_pass)


def before_encoder(model: ModelConfig, encoder: ModelConfig, of_source: Pass) -> Iterator[Operation]:
    """Yield the operations before the encoder's layers. The token embedding and a norm right after it are those of the
    decoder."""
    return before_layers(encoder, of_source, model.norm if model.embedding.norm is True else encoder.norm)


def after_encoder(encoder: ModelConfig, of_source: Pass) -> Iterator[Operation]:
    """Yield the encoder's final norm. In float32, training stores its output once for the cross-attention of all
    layers. In 16 bits, each layer stores a copy."""
    yield from of_source.norm(final_norm(encoder), encoder.d_model)
    output = of_source.rows * encoder.d_model * of_source.stream_bytes
    is_shared = of_source.bytes_each == of_source.stream_bytes
    yield Operation("element-wise", "encoder", 0.0, saved=output if is_shared else 0.0)


def before_layers(model: ModelConfig, model_pass: Pass, norm: BlockNorm | None = None) -> Iterator[Operation]:
    """Yield the operations before the layers: the embedding, the positions and segments added to it, and its norm.
    `norm` is the kind of that norm, by default the norm of the model."""
    embedding, added = model.embedding.resolve(model.base_width), model.added_width
    width = embedding.width or model.d_model
    # Reading the rows of a tied matrix is counted in the head, which reads all of them.
    rows = 0 if model.head.tied else model_pass.rows * width * model_pass.bytes_each
    yield Operation("embedding", "embedding", 0.0, weights=rows, moved=model_pass.rows * width * model_pass.bytes_each)
    if embedding.widened == "tokens":
        yield from _widened(model, model_pass)
    if embedding.scale != 1:
        yield model_pass.element_wise("element-wise", "embedding", added, flops=1)
    match model.position:
        case Learned():
            positions = model_pass.element_wise("element-wise", "positions", added, flops=1, read=2)
            yield positions._replace(weights=model_pass.tokens * added * model_pass.bytes_each)
        case Sinusoidal():
            yield model_pass.element_wise("element-wise", "positions", added, flops=1, read=2)
        case shared:  # a table of biases, if layers share one
            saved = shared.saved_for_scores(model_pass, 1, 1) if shared.is_shared else 0.0
            weights = positions_of_stack(model) * model_pass.bytes_each
            yield Operation("embedding", "positions", 0.0, weights=weights, saved=saved)
    if embedding.segments:
        segments = model_pass.element_wise("element-wise", "embedding", added, flops=1, read=2)
        yield segments._replace(weights=embedding.segments * added * model_pass.bytes_each)
    yield from model_pass.norm((norm or model.norm) if embedding.norm else NoNorm(), added)
    if model.dropout.embedding:
        yield Operation("element-wise", "embedding", 0.0, saved=model_pass.rows * added * model_pass.stream_bytes)
    if embedding.widened == "sum":
        yield from _widened(model, model_pass)


def _widened(model: ModelConfig, model_pass: Pass) -> Iterator[Operation]:
    if widen := widening(model):
        yield model_pass.product("embedding", widen.d_in, widen.d_out, bias=widen.n_biases)


def after_layers(model: ModelConfig, model_pass: Pass, rows: float) -> Iterator[Operation]:
    """Yield the operations after the layers: the final norm, and the head applied to `rows` tokens."""
    yield from model_pass.norm(final_norm(model), model.d_model)
    width, vocab, head = model.embedding.width or model.d_model, model.vocab_size, model.readout
    if before := before_head(model):
        yield model_pass.product("head", before.d_in, before.d_out, bias=before.n_biases, rows=rows)
    if head.transform:
        rows_only = replace(model_pass, texts=round(rows), tokens=1, n_cached=0)
        yield from rows_only.activation("head", head.transform.activation, width)
        yield from rows_only.norm(model.norm if head.transform.norm else NoNorm(), width)
    pieces = ceil(rows / rows_at_once(vocab, "cpu"))
    yield model_pass.product("head", width, vocab, bias=vocab * head.bias, rows=rows)._replace(times=pieces)
    scaled = (head.scale != 1) + (3 if head.softcap else 0)
    if scaled:
        moved = 2 * scaled * rows * vocab * model_pass.bytes_each
        made = rows * vocab * model_pass.bytes_each
        yield Operation("element-wise", "head", scaled * rows * vocab, moved=moved, made=made, times=pieces)


def training_step(
    model: ModelConfig, model_pass: Pass, lora: Lora | None = None, optimizer: Optimizer | None = None
) -> Iterator[Operation]:
    """Yield the operations of a training step: forward pass, loss, backward pass and update, without recomputation.

    If `optimizer` is None, it is AdamW.
    """
    yield from forward_and_backward(model, model_pass, lora)
    yield loss(model, model_pass)
    n_trained = added_parameters(model, lora) or parameters(model).total
    shapes = added_matrices(model, lora) if lora else matrix_shapes(model)
    yield from update(optimizer or AdamW(), n_trained, shapes, model_pass.bytes_each)


def forward_and_backward(model: ModelConfig, model_pass: Pass, lora: Lora | None = None) -> Iterator[Operation]:
    """Yield the operations of the forward and the backward pass, without the loss."""
    if lora is None:
        yield from (operation.repeated(1 + BACKWARD) for operation in forward(model, model_pass))
        return
    yield from around_layers(model, model_pass)
    for stack, own_pass in stack_passes(model, model_pass):
        for operation in layers_with_lora(layer_configs(stack), own_pass, lora):
            yield operation if stack is model else operation._replace(part="encoder")
    yield from frozen(after_layers(model, model_pass, model_pass.logit_rows))


def loss(model: ModelConfig, model_pass: Pass) -> Operation:
    logits = model_pass.logit_rows * model.vocab_size
    pieces, n_bytes = ceil(model_pass.logit_rows / rows_at_once(model.vocab_size, "cpu")), logits * FLOAT32_BYTES
    return Operation("loss", "loss", LOSS_FLOPS * logits, moved=LOSS_NUMBERS * n_bytes, made=n_bytes, times=pieces)


def matrix_flops_per_byte(pass_work: Iterable[Work]) -> float:
    """Return the arithmetic intensity (Williams 2009): FLOPs of matrix products per byte; 0 if there are no bytes."""
    pass_work = list(pass_work)
    n_bytes = sum(work.n_bytes for work in pass_work)
    return sum(work.flops for work in pass_work if work.kind in OF_MATRICES) / n_bytes if n_bytes else 0.0


def by_kind(operations: Iterable[Operation]) -> list[Work]:
    """Return the totals for each kind of operation that occurs, in the order of KINDS."""
    totals = _sums(operations, lambda o: o.kind)
    return [totals[kind] for kind in KINDS if kind in totals]


def products_by_part(operations: Iterable[Operation]) -> dict[str, Work]:
    """Return the totals of matrix products with weights, by part of the model and in the order of the model.

    The parts are those that components name, such as `mlp`, and the head.
    """
    return _sums((o for o in operations if o.kind == "products"), lambda o: o.part)


def _sums(operations: Iterable[Operation], key: Callable[[Operation], _Key]) -> dict[_Key, Work]:
    groups: dict[_Key, list[Operation]] = {}
    for operation in operations:
        if operation.flops or operation.n_bytes:
            groups.setdefault(key(operation), []).append(operation)
    return {name: _total(group) for name, group in groups.items()}


def _total(operations: list[Operation]) -> Work:
    return Work(
        kind=operations[0].kind,
        count=sum(o.times for o in operations),
        flops=sum(o.flops for o in operations),
        weight_bytes=sum(o.weights for o in operations),
        kept_bytes=sum(o.kept for o in operations),
        moved_bytes=sum(o.moved for o in operations),
        large_bytes=sum(o.moved for o in operations if o.made / o.times >= LARGEST_KEPT),
    )


class FlopsPerToken(Base):
    """FLOPs per token for each part of the model. They are averaged over the tokens of a sequence.

    A model with an encoder also reads a source text: the parts `encoder` and `cross` are averaged over the target
    tokens, like the others.

    Components name their parts, such as `mlp`. The part `head` computes the logits from the last hidden states. A tied
    head has as many FLOPs as an untied one.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @computed_field
    @property
    def total(self) -> float:
        return sum(dict(self).values())


def forward_flops(
    model: ModelConfig,
    seq_len: int,
    counting: Counting = "visible",
    source: int | None = None,
    predicted: float | None = None,
) -> FlopsPerToken:
    """Return the FLOPs per token of a forward pass.

    `source` is the number of source tokens (see `source_tokens`). `predicted` is the mean number of tokens that get
    logits. None: all tokens.
    """
    source = source_tokens(model, seq_len, source)
    parts = matrix_flops(forward(model, Pass(1, seq_len, counting=counting, source=source, predicted=predicted)))
    head = parts.pop("head")
    per_token = {part: n / seq_len for part, n in parts.items()}
    return FlopsPerToken(**per_token, head=head / seq_len)  # pyright: ignore[reportCallIssue] - components name the parts


def training_flops(
    model: ModelConfig,
    seq_len: int,
    counting: Counting = "visible",
    source: int | None = None,
    predicted: float | None = None,
) -> float:
    """Return the FLOPs per token of the forward and the backward pass: 3 times those of the forward pass. Layers are
    not recomputed. `source` and `predicted` are those of `forward_flops`."""
    return (1 + BACKWARD) * forward_flops(model, seq_len, counting, source, predicted).total


def visible_training_flops(config: Config, predicted: float | None = None) -> float:
    """Return the FLOPs of a training window per token of the window, without those of hidden query-key pairs. They
    include everything that the model reads for the window, such as the source text of an encoder. They exclude those of
    a teacher (`teacher_flops`).

    `predicted` is the mean number of tokens that get logits, if it depends on the data. None: see `tokens_predicted`.
    """
    return _training_flops(config, "visible", predicted)


def computed_training_flops(config: Config) -> float:
    """Return the FLOPs of a training window per token of the window, including those of hidden query-key pairs that the
    attention kernel computes nevertheless. They exclude those of a teacher (`teacher_flops`)."""
    return _training_flops(config, "packed" if config.train.document_mask else "computed")


def teacher_flops(config: Config, teacher: ModelConfig, predicted: float | None = None) -> float:
    """Return the FLOPs that `train.teacher` adds to a training window, per token of the window: the forward pass of the
    teacher and, if layers are matched, a second pass through the layers of the model. Hidden pairs do not count.

    `predicted` is that of `visible_training_flops`.
    """
    settings, train, (stack, source) = config.train.teacher, resolve_train(config), tokens_read(config)
    if settings is None:
        return 0.0
    predicted = tokens_predicted(config) if predicted is None else predicted
    of_teacher = dict(forward_flops(teacher, stack, source=source, predicted=predicted))
    flops = stack * sum(n for part, n in of_teacher.items() if part != "head" or settings.logits)
    if settings.hidden:
        flops += matrix_flops(_matched_layers(config.model, Pass(1, stack), train.lora)).total()
    return flops / train.seq_len


def _matched_layers(model: ModelConfig, window: Pass, lora: Lora | None) -> Iterator[Operation]:
    """Yield the operations of a forward and a backward pass in which each layer reads the teacher's input. With LoRA,
    this input needs no gradient. Otherwise, the norm before the layer has trained weights and needs one."""
    yield from before_layers(model, window)
    for layer in layer_configs(model):
        if lora:
            yield from layers_with_lora([layer], window, lora)
        else:
            yield from (operation.repeated(1 + BACKWARD) for operation in layer.work(window))


def _training_flops(config: Config, counting: Counting, predicted: float | None = None) -> float:
    train = resolve_train(config)
    stack, source = tokens_read(config)
    predicted = tokens_predicted(config) if predicted is None else predicted
    if train.lora is None:
        return training_flops(config.model, stack, counting, source, predicted) * (stack / train.seq_len)
    window = Pass(1, stack, counting=counting, source=source, predicted=predicted)
    return matrix_flops(forward_and_backward(config.model, window, train.lora)).total() / train.seq_len
