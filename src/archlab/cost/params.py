"""Parameter counts by role, from resolved layers; equal to what `archlab.Decoder` allocates."""

from pydantic import computed_field

from archlab.config.base import Base
from archlab.config.layers import NORM_SLOTS, LayerConfig, ResolvedAttention, final_norm, layer_configs
from archlab.config.model_schema import ACTIVATION_PARAMETERS, T5, Learned, ModelConfig, NoNorm, Shaw


class Parameters(Base):
    """Learned numbers by role; a tied head counts once, as the embedding."""

    embedding: int
    """The token embedding, with the projection that widens it."""
    positions: int
    """Learned positions: vectors on the embedding, or numbers beside the scores."""
    attention: int
    """Query, key, value and output projections of all layers."""
    mlp: int
    """MLP projections of all layers."""
    norms: int
    """Weights and biases of all norms, the final one included."""
    head: int
    """An untied head's matrix, the projection before it, and the logits' bias."""

    @computed_field
    @property
    def total(self) -> int:
        """All of them."""
        return sum(dict(self).values())

    @computed_field
    @property
    def non_embedding(self) -> int:
        """Without token embedding, positions and untied head: what scaling laws count (Kaplan 2020)."""
        return self.attention + self.mlp + self.norms


def parameters(model: ModelConfig) -> Parameters:
    """Counts for a whole model."""
    layers = layer_configs(model)
    narrow, vocab = model.embedding.width, model.vocab_size
    width, projection = narrow or model.d_model, (narrow or 0) * model.d_model
    return Parameters(
        embedding=vocab * width + projection,
        positions=_positions(model) + sum(map(_own_positions, layers)),
        attention=sum(map(_attention, layers)),
        mlp=sum(map(_mlp, layers)),
        norms=sum(map(_block_norms, layers)) + _outer_norms(model),
        head=(0 if model.head.tied else vocab * width) + (vocab if model.head.bias else 0) + projection,
    )


def _positions(model: ModelConfig) -> int:
    match model.position:
        case Learned(offset=offset):
            return (offset + model.max_seq_len) * model.d_model
        case T5(shared=True, buckets=buckets):
            return buckets * model.attention.n_heads
        case _:
            return 0


def _own_positions(layer: LayerConfig) -> int:
    """Of the layer alone, beside its scores."""
    match layer.position:
        case T5(shared=False, buckets=buckets):
            return buckets * layer.attention.n_heads
        case Shaw(max_distance=max_distance):
            return (max_distance + 1) * layer.attention.head_dim
        case _:
            return 0


def _attention(layer: LayerConfig) -> int:
    heads, d = layer.attention, layer.d_model
    width, kv_width = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
    qkv = (width + 2 * kv_width) * (d + heads.qkv_bias)
    return qkv + (width + heads.out_bias) * d


def _mlp(layer: LayerConfig) -> int:
    mlp, d = layer.mlp, layer.d_model
    inputs = 2 if mlp.kind == "gated" else 1
    own = ACTIVATION_PARAMETERS.get(mlp.activation, 0)
    return inputs * mlp.d_ff * (d + mlp.bias) + (mlp.d_ff + mlp.bias) * d + own


def _block_norms(layer: LayerConfig) -> int:
    heads, sub_norms = layer.attention, 0
    sub_norms += heads.sub_norm * layer.norm.n_parameters(heads.n_heads * heads.head_dim)
    sub_norms += layer.mlp.sub_norm * layer.norm.n_parameters(layer.mlp.d_ff)
    if isinstance(layer.norm, NoNorm):
        return _qk_norms(heads)
    saved = 1 if layer.block.parallel == "shared" else 0
    in_slots = 2 * len(NORM_SLOTS[layer.norm.placement]) - saved  # of two branches
    return in_slots * layer.norm.n_parameters(layer.d_model) + sub_norms + _qk_norms(heads)


def _qk_norms(heads: ResolvedAttention) -> int:
    norm = heads.qk_norm
    if isinstance(norm, NoNorm) or norm.scope == "head":
        return 2 * norm.n_parameters(heads.head_dim)
    return sum(norm.n_parameters(n * heads.head_dim) for n in (heads.n_heads, heads.n_kv_heads))


def _outer_norms(model: ModelConfig) -> int:
    """The final norm, and the embedding's."""
    of_embedding = model.norm if model.embedding.norm else NoNorm()
    return sum(norm.n_parameters(model.d_model) for norm in (final_norm(model), of_embedding))
