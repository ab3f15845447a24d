"""Cost of training with LoRA (Hu 2021): the parameters that it adds, and the operations of forward and backward pass.

The backward pass computes no gradients of frozen weights. It also computes no gradients of values that depend on no
trained matrix: those before the first changed projections of a stack.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from archlab.config.components.component import MatrixShape, ProjectionShape, weights_in
from archlab.config.components.work import Operation, Pass
from archlab.config.layers import Branch, LayerConfig, distinct_layers, row_of, stacks
from archlab.config.lora import Lora
from archlab.config.model_schema import ModelConfig

_PART = "lora"


def added_parameters(model: ModelConfig, lora: Lora | None) -> int:
    """Return the number of parameters that LoRA adds to the model. 0 without LoRA."""
    return 0 if lora is None else weights_in(added_matrices(model, lora))


def added_matrices(model: ModelConfig, lora: Lora) -> Counter[MatrixShape]:
    """Return the number of matrices of each shape that LoRA adds to the model."""
    layers = [(layer, n) for stack in stacks(model) for layer, n in distinct_layers(stack).items()]
    shapes = Counter[MatrixShape]()
    for layer, n in layers:
        for shape in _changed(layer, lora).values():
            shapes[MatrixShape(lora.rank, shape.d_in)] += n
            shapes[MatrixShape(shape.d_out, lora.rank)] += n
    return shapes


def added_work(layer: LayerConfig, model_pass: Pass, lora: Lora) -> Iterator[Operation]:
    """Yield the operations that LoRA adds to a layer's forward pass."""
    for shape in _changed(layer, lora).values():
        yield from _added(shape, model_pass, lora)


def frozen(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yield the operations of the forward pass and the backward pass, whose weights are frozen.

    For each matrix product and each convolution, the backward pass computes only the gradient of the inputs. Other
    operations have two inputs with gradients, or few FLOPs.
    """
    for operation in operations:
        yield operation.repeated(2 if operation.kind in ("products", "convolutions") else 3)


def layers_with_lora(layers: Sequence[LayerConfig], model_pass: Pass, lora: Lora) -> Iterator[Operation]:
    """Yield the operations of a stack's layers in the forward and the backward pass.

    The input of the first layer needs no gradient. This is exact if LoRA changes all projections. Otherwise, the count
    of the first layer with LoRA may be too high, by at most that layer's backward pass.
    """
    needs_gradient = False
    for layer in layers:
        if needs_gradient:
            yield from frozen(layer.work(model_pass))
            yield from (operation.repeated(3) for operation in added_work(layer, model_pass, lora))
            continue
        yield from layer.work(model_pass)
        for stage in layer.stages:
            for branch in stage:
                changed = _changed_in(branch, lora)
                yield from _backward(branch, changed, model_pass, lora, needs_gradient=needs_gradient)
            needs_gradient |= any(_changed_in(branch, lora) for branch in stage)


def _backward(
    branch: Branch, changed: dict[str, ProjectionShape], model_pass: Pass, lora: Lora, *, needs_gradient: bool
) -> Iterator[Operation]:
    """Yield the operations that LoRA and the backward pass add to a branch. `needs_gradient` is true if the input of
    the branch needs a gradient."""
    shapes = branch.component.projections(branch.site)
    is_mixed = needs_gradient or any(shape.reads != "mixed" for shape in changed.values())
    for shape in changed.values():
        reads_trained = needs_gradient if shape.reads == "input" else is_mixed
        a, *others = _added(shape, model_pass, lora)
        yield a.repeated(2 + reads_trained)
        yield from (operation.repeated(3) for operation in others)
    if not is_mixed:
        return
    work = [o._replace(part=row_of(branch.name, o.part)) for o in branch.component.work(branch.site, model_pass)]
    products = sum(operation.flops for operation in work if operation.kind == "products")
    inputs = sum(2 * model_pass.rows * s.d_in * s.d_out for s in shapes.values() if s.reads == "input")
    share = 1.0 if needs_gradient else 1 - inputs / products
    for operation in work:
        if operation.kind == "products":
            yield operation._replace(
                flops=share * operation.flops, weights=share * operation.weights, moved=share * operation.moved
            )
        else:
            yield operation.repeated(1 if operation.kind == "convolutions" else 2)


def _added(shape: ProjectionShape, model_pass: Pass, lora: Lora) -> Iterator[Operation]:
    """Yield the product with A, then other operations."""
    own_pass = model_pass.of_source if shape.reads == "source" else model_pass
    yield own_pass.product(_PART, shape.d_in, lora.rank, shares_input=not lora.dropout)
    if lora.dropout:
        yield own_pass.element_wise("element-wise", _PART, shape.d_in, flops=2, saved=1)
    yield own_pass.element_wise("element-wise", _PART, lora.rank, flops=1)
    yield own_pass.product(_PART, lora.rank, shape.d_out)
    yield own_pass.element_wise("element-wise", _PART, shape.d_out, flops=1, read=2)


def _changed(layer: LayerConfig, lora: Lora) -> dict[str, ProjectionShape]:
    return {path: shape for path, shape in layer.projections().items() if lora.changes(path)}


def _changed_in(branch: Branch, lora: Lora) -> dict[str, ProjectionShape]:
    shapes = branch.component.projections(branch.site)
    return {name: shape for name, shape in shapes.items() if lora.changes(f"{branch.name}.{name}")}
