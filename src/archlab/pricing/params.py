"""Parameter counts by role, from resolved layers; equal to what `archlab.Decoder` allocates."""

from collections import Counter

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.norm import NoNorm
from archlab.config.core.base import Base
from archlab.config.layers import COMPONENTS, distinct_layers, final_norm
from archlab.config.model_schema import ModelConfig


class Parameters(Base):
    """Learned numbers by part: those named here, and those that components name. A tied head counts once, as the
    embedding."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    embedding: int
    """The token embedding, with the projection that widens it."""
    positions: int
    """Learned positions: vectors on the embedding, or numbers beside the scores."""
    norms: int
    """Weights and biases of all norms, the final one included."""
    head: int
    """An untied head's matrix, the projection before it, and the logits' bias."""
    idle: int
    """How many of all these a token makes no use of: experts that it is not sent to."""
    matrices: int
    """How many of all these are in matrices of layers, which Muon updates by itself: not tables, biases, norms and
    convolutions."""

    @property
    def parts(self) -> dict[str, int]:
        """All that `total` is the sum of, in the order of the model."""
        before = {"embedding": self.embedding, "positions": self.positions}
        return {**before, **self.__pydantic_extra__, "norms": self.norms, "head": self.head}

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @computed_field
    @property
    def non_embedding(self) -> int:
        """Without token embedding, positions and untied head: what scaling laws count (Kaplan 2020)."""
        return self.total - self.embedding - self.positions - self.head

    @computed_field
    @property
    def active(self) -> int:
        """Those that one token makes use of: all but idle experts."""
        return self.total - self.idle


def parameters(model: ModelConfig) -> Parameters:
    """Counts for a whole model."""
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
    """Learned numbers of positions that all layers share."""
    n_heads = max(getattr(model, name).score_heads for name in COMPONENTS)
    return model.position.of_all_layers(model.d_model, model.max_seq_len, n_heads)


def outer_norms(model: ModelConfig) -> int:
    """The final norm, and the embedding's."""
    of_embedding = model.norm if model.embedding.norm else NoNorm()
    return sum(norm.n_parameters(model.d_model) for norm in (final_norm(model), of_embedding))
