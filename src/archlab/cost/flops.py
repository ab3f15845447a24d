"""Floating-point operations of matrix products, from resolved layers.

A multiply-add is 2 operations. Norms, activations, softmax and the embedding's lookup are not counted: they
move bytes rather than multiply. Attention counts the (query, key) pairs that are visible, not the square.
"""

from pydantic import computed_field

from archlab.config.base import Base
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig, Shaw
from archlab.model.visibility import visible_pairs

BACKWARD = 2
"""The backward pass in forward passes: one product for the inputs' gradient and one for the weights'."""


class Flops(Base):
    """FLOPs per token by part, averaged over the positions of one sequence."""

    projections: float
    """Query, key, value and output projections."""
    scores: float
    """q.k and the weighted sum of values, over visible pairs."""
    mlp: float
    """MLP projections."""
    head: float
    """Last hidden state to logits; the same whether tied or not."""

    @computed_field
    @property
    def total(self) -> float:
        """All of them."""
        return sum(dict(self).values())


def forward_flops(model: ModelConfig, seq_len: int) -> Flops:
    """FLOPs per token of a forward pass over a sequence of `seq_len` tokens."""
    layers = layer_configs(model)
    return Flops(
        projections=float(sum(map(_projections, layers))),
        scores=sum(_scores(layer, seq_len) for layer in layers) / seq_len,
        mlp=float(sum(map(_mlp, layers))),
        head=_head(model),
    )


def training_flops(model: ModelConfig, seq_len: int) -> float:
    """FLOPs per token, forward and backward: 3 times the forward pass; nothing is recomputed."""
    return (1 + BACKWARD) * forward_flops(model, seq_len).total


def _head(model: ModelConfig) -> float:
    """With a narrow embedding its two projections, too."""
    width = model.embedding.width
    return 2.0 * (model.d_model * model.vocab_size if width is None else width * (model.vocab_size + 2 * model.d_model))


def _projections(layer: LayerConfig) -> int:
    heads = layer.attention
    return 2 * layer.d_model * heads.head_dim * (2 * heads.n_heads + 2 * heads.n_kv_heads)


def _scores(layer: LayerConfig, seq_len: int) -> int:
    """Of a whole sequence: a visible pair costs one product with k and one with v (with Shaw's vectors one
    more), in every query head."""
    heads = layer.attention
    products = 3 if isinstance(layer.position, Shaw) else 2
    return products * 2 * heads.n_heads * heads.head_dim * visible_pairs(heads, seq_len)


def _mlp(layer: LayerConfig) -> int:
    matrices = 3 if layer.mlp.kind == "gated" else 2
    return 2 * matrices * layer.d_model * layer.mlp.d_ff
