"""Parameter counts by role, from resolved layers; equal to what `archlab.Decoder` allocates."""

from collections import Counter

from pydantic import computed_field

from archlab.config.any_attention import AnyAttention
from archlab.config.base import Base
from archlab.config.layers import final_norm, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.norm import NoNorm
from archlab.config.position import T5, Learned


class Parameters(Base):
    """Learned numbers by role; a tied head counts once, as the embedding."""

    embedding: int
    """The token embedding, with the projection that widens it."""
    positions: int
    """Learned positions: vectors on the embedding, or numbers beside the scores."""
    attention: int
    """Projections of attention in all layers."""
    mixer: int
    """Recurrent mixers of all layers, but their norms."""
    mlp: int
    """MLPs of all layers, routers and every expert included."""
    norms: int
    """Weights and biases of all norms, the final one included."""
    head: int
    """An untied head's matrix, the projection before it, and the logits' bias."""
    idle: int
    """How many of all these a token makes no use of: experts that it is not sent to."""

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.positions + self.non_embedding + self.head

    @computed_field
    @property
    def non_embedding(self) -> int:
        """Without token embedding, positions and untied head: what scaling laws count (Kaplan 2020)."""
        return self.attention + self.mixer + self.mlp + self.norms

    @computed_field
    @property
    def active(self) -> int:
        """Those that one token makes use of: all but idle experts."""
        return self.total - self.idle


def parameters(model: ModelConfig) -> Parameters:
    """Counts for a whole model."""
    narrow, vocab = model.embedding.width, model.vocab_size
    width, projection = narrow or model.d_model, (narrow or 0) * model.d_model
    counts = Counter(positions=_positions(model), attention=0, mixer=0, mlp=0, norms=_outer_norms(model))
    idle = 0
    for layer in layer_configs(model):
        own = layer.parameters()
        counts.update(own)
        idle += own.total() - layer.active_parameters()
    return Parameters(
        embedding=vocab * width + projection,
        **counts,  # a part of another name is refused, not left out of the sum
        head=(0 if model.head.tied else vocab * width) + (vocab if model.head.bias else 0) + projection,
        idle=idle,
    )


def _positions(model: ModelConfig) -> int:
    """Those that all layers share."""
    match model.position, model.attention:
        case Learned(offset=offset), _:
            return (offset + model.max_seq_len) * model.d_model
        case T5(shared=True, buckets=buckets), AnyAttention(n_heads=n_heads):
            return buckets * n_heads
        case _:
            return 0


def _outer_norms(model: ModelConfig) -> int:
    """The final norm, and the embedding's."""
    of_embedding = model.norm if model.embedding.norm else NoNorm()
    return sum(norm.n_parameters(model.d_model) for norm in (final_norm(model), of_embedding))
