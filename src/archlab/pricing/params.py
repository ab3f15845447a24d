"""Parameter counts by part of the model, computed from resolved layers. They equal those of `archlab.Decoder`."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.component import MatrixShape, weights_in
from archlab.config.core.base import Base
from archlab.config.layers import COMPONENTS, LayerConfig, distinct_layers, encoder_of, final_norm, stacks
from archlab.config.model_schema import ModelConfig


class Parameters(Base):
    """Parameter counts by part of the model. Apart from the fields below, there is one count for each part that a
    component names, such as `mlp`.

    The matrix of a tied head counts only as the embedding. In a model with an encoder, the part `encoder` contains
    the attention and the MLPs of all encoder layers, and `cross` contains the cross-attention of the decoder.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    embedding: int
    """Parameters of the token embedding and the segments, including the projection that widens them."""
    positions: int
    """Parameters of learned positions, of encoder and decoder: vectors added to the embedding, or biases added to the
    scores."""
    norms: int
    """Weights and biases of all norms, including the final norm and those of the encoder."""
    head: int
    """Parameters of an untied head, of the projection or dense layer before the head, and of the bias on the logits."""
    idle: int
    """Parameters of the experts that a token does not use."""
    matrices: int
    """Parameters in the weight matrices of layers, which Muon updates.

    Embedding tables, biases, norms and convolutions do not count.
    """
    corrections: int
    """Number of correction biases of routers (`mlp.router.correction`), which no gradient trains.

    They are buffers, so `total` leaves them out. The classes of AFMoE, Laguna and ERNIE 4.5 in transformers count them
    as parameters.
    """

    @property
    def parts(self) -> dict[str, int]:
        before = {"embedding": self.embedding, "positions": self.positions}
        return {**before, **self.__pydantic_extra__, "norms": self.norms, "head": self.head}

    @computed_field
    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @computed_field
    @property
    def non_embedding(self) -> int:
        """Number of parameters, without `embedding`, `positions` and `head`.

        Scaling laws use this number (Kaplan 2020).
        """
        return self.total - self.embedding - self.positions - self.head

    @computed_field
    @property
    def active(self) -> int:
        return self.total - self.idle


class DenseLayer(NamedTuple):
    """Shape of a dense layer outside the layers of the model."""

    d_in: int
    d_out: int
    has_bias: bool

    @property
    def n_weights(self) -> int:
        return self.d_in * self.d_out

    @property
    def n_biases(self) -> int:
        return self.d_out * self.has_bias

    @property
    def n_parameters(self) -> int:
        return self.n_weights + self.n_biases


def widening(model: ModelConfig) -> DenseLayer | None:
    """Return the projection that widens the embedding to d_model; None if the embedding is as wide as d_model."""
    width = model.embedding.width
    return DenseLayer(width, model.d_model, model.embedding.widened == "sum") if width else None


def before_head(model: ModelConfig) -> DenseLayer | None:
    """Return the dense layer or the projection between the final norm and the output matrix, or None."""
    width, transform = model.embedding.width, model.head.transform
    if not transform and not width:
        return None
    return DenseLayer(model.d_model, width or model.d_model, transform is not None and transform.bias)


def matrix_shapes(model: ModelConfig) -> Counter[MatrixShape]:
    """Return how many tensors of the weight matrices that Muon updates have each shape."""
    shapes, widen, before = Counter[MatrixShape](), widening(model), before_head(model)
    if widen:
        shapes[MatrixShape(widen.d_out, widen.d_in)] += n_widenings(model)
    if before and model.head.transform:  # without an activation, it is part of the head's table
        shapes[MatrixShape(before.d_out, before.d_in)] += 1
    for stack in stacks(model):
        shapes += matrix_shapes_of(distinct_layers(stack))
    return shapes


def matrix_shapes_of(layers: Mapping[LayerConfig, int]) -> Counter[MatrixShape]:
    """Return how many tensors of weight matrices of layers have each shape.

    `layers` maps distinct layers to their numbers.
    """
    shapes = Counter[MatrixShape]()
    for layer, n in layers.items():
        shapes.update({shape: n * count for shape, count in layer.matrix_shapes().items()})
    return shapes


def parameters(model: ModelConfig) -> Parameters:
    counts = Counter(positions=shared_positions(model), norms=outer_norms(model))
    widen, before, n_widen = widening(model), before_head(model), n_widenings(model)
    idle = corrections = 0
    for stack in stacks(model):
        for layer, n in distinct_layers(stack).items():
            own = layer.parameters()
            for part, number in own.items():
                counts[_row(part, is_encoder=stack is not model)] += n * number
            idle += n * (own.total() - layer.active_parameters())
            corrections += n * layer.n_corrections()
    table = model.vocab_size * (model.embedding.width or model.d_model)
    return Parameters(
        embedding=table + model.embedding.segments * model.added_width + n_widen * _size(widen),
        **counts,
        head=(0 if model.head.tied else table) + model.vocab_size * model.head.bias + _size(before),
        idle=idle,
        matrices=weights_in(matrix_shapes(model)),
        corrections=corrections,
    )


def _row(part: str, *, is_encoder: bool) -> str:
    return "encoder" if is_encoder and part not in ("positions", "norms") else part


def n_widenings(model: ModelConfig) -> int:
    """Return the number of projections that widen the embedding. If the sum with the positions is widened, encoder and
    decoder each have their own."""
    return len(stacks(model)) if model.embedding.widened == "sum" else 1


def _size(dense: DenseLayer | None) -> int:
    return dense.n_parameters if dense else 0


def shared_positions(model: ModelConfig) -> int:
    """Return the number of parameters of learned positions outside layers, in the encoder and in the decoder."""
    return sum(map(positions_of_stack, stacks(model)))


def positions_of_stack(stack: ModelConfig) -> int:
    """Return the number of parameters of the learned positions that all layers of one stack share."""
    n_heads = max(getattr(stack, name).score_heads for name in COMPONENTS)
    return stack.position.of_all_layers(stack.added_width, stack.max_seq_len, n_heads)


def outer_norms(model: ModelConfig) -> int:
    """Return the number of parameters of the norms outside layers: on the embedding, at the end, and in the head. An
    encoder has a final norm of its own, and a norm on its sum of embedding and positions."""
    n = final_norm(model).n_parameters(model.d_model)
    if encoder := encoder_of(model):
        n += final_norm(encoder).n_parameters(encoder.d_model)
        n += encoder.norm.n_parameters(encoder.added_width) if encoder.embedding.norm == "sum" else 0
    if model.embedding.norm:
        n += model.norm.n_parameters(model.added_width if model.embedding.norm == "sum" else model.d_model)
    if model.head.transform and model.head.transform.norm:
        n += model.norm.n_parameters(model.embedding.width or model.d_model)
    return n
