"""Parameter counts by role, from resolved layers; equal to what `archlab.Decoder` allocates."""

from pydantic import computed_field

from archlab.config.base import Base
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import LayerNorm, Learned, ModelConfig, NoNorm, Norm

_NORMS_PER_BLOCK = {"pre": 2, "post": 2, "double": 4, "output": 2}
"""Placement -> norms in a serial block: one per filled slot of each of its two branches."""


class Parameters(Base):
    """Learned numbers by role; a tied head counts once, as the embedding."""

    embedding: int
    """The token embedding."""
    positions: int
    """Learned positions."""
    attention: int
    """Query, key, value and output projections of all layers."""
    mlp: int
    """MLP projections of all layers."""
    norms: int
    """Weights and biases of all norms, the final one included."""
    head: int
    """An untied head's matrix, and the logits' bias."""

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
    width, vocab = model.d_model, model.vocab_size
    return Parameters(
        embedding=vocab * width,
        positions=model.max_seq_len * width if isinstance(model.position, Learned) else 0,
        attention=sum(map(_attention, layers)),
        mlp=sum(map(_mlp, layers)),
        norms=sum(map(_block_norms, layers)) + _final_norm(model),
        head=(0 if model.head.tied else vocab * width) + (vocab if model.head.bias else 0),
    )


def _attention(layer: LayerConfig) -> int:
    heads, d = layer.attention, layer.d_model
    width, kv_width = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
    qkv = (width + 2 * kv_width) * (d + heads.qkv_bias)
    return qkv + (width + heads.out_bias) * d


def _mlp(layer: LayerConfig) -> int:
    mlp, d = layer.mlp, layer.d_model
    inputs = 2 if mlp.kind == "gated" else 1
    return inputs * mlp.d_ff * (d + mlp.bias) + (mlp.d_ff + mlp.bias) * d


def _block_norms(layer: LayerConfig) -> int:
    if isinstance(layer.norm, NoNorm):
        return 0
    saved = 1 if layer.block.parallel == "shared" else 0
    return (_NORMS_PER_BLOCK[layer.norm.placement] - saved) * _norm(layer.norm, layer.d_model)


def _final_norm(model: ModelConfig) -> int:
    if isinstance(model.norm, NoNorm) or model.norm.placement == "post":
        return 0
    return _norm(model.norm, model.d_model)


def _norm(norm: Norm, width: int) -> int:
    return width * (2 if isinstance(norm, LayerNorm) and norm.bias else 1)
