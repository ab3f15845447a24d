"""Parameter counts by part of the model, computed from resolved layers. They equal those of `archlab.Decoder`."""

from collections import Counter

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.norm import NoNorm
from archlab.config.core.base import Base
from archlab.config.layers import COMPONENTS, distinct_layers, final_norm
from archlab.config.model_schema import ModelConfig


class Parameters(Base):
    """Parameter counts by part of the model. Apart from the fields below, there is one count for each part that a
    component names, such as `mlp`.

    The matrix of a tied head counts only as the embedding.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    embedding: int
    """Parameters of the token embedding, including the projection that widens it to d_model."""
    positions: int
    """Parameters of learned positions: vectors added to the embedding, or biases added to the scores."""
    norms: int
    """Weights and biases of all norms, including the final norm."""
    head: int
    """Parameters of an untied head, of the projection before the head, and of the bias on the logits."""
    idle: int
    """Parameters of the experts that a token does not use."""
    matrices: int
    """Parameters in the weight matrices of layers, which Muon updates.

    Embedding tables, biases, norms and convolutions do not count.
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


def parameters(model: ModelConfig) -> Parameters:
    narrow, vocab = model.embedding.width, model.vocab_size
    width, projection = narrow or model.d_model, (narrow or 0) * model.d_model
    counts = Counter(positions=shared_positions(model), norms=outer_norms(model))
    idle, matrices = 0, projection
    for layer, n in distinct_layers(model).items():
        own = layer.parameters()
        counts.update({part: n * number for part, number in own.items()})
        idle += n * (own.total() - layer.active_parameters())
        matrices += n * layer.in_matrices()
    return Parameters(
        embedding=vocab * width + projection,
        **counts,
        head=(0 if model.head.tied else vocab * width) + (vocab if model.head.bias else 0) + projection,
        idle=idle,
        matrices=matrices,
    )


def shared_positions(model: ModelConfig) -> int:
    n_heads = max(getattr(model, name).score_heads for name in COMPONENTS)
    return model.position.of_all_layers(model.d_model, model.max_seq_len, n_heads)


def outer_norms(model: ModelConfig) -> int:
    embedding_norm = model.norm if model.embedding.norm else NoNorm()
    return sum(norm.n_parameters(model.d_model) for norm in (final_norm(model), embedding_norm))
