"""Floating-point operations of matrix products, from resolved layers.

A multiply-add is 2 operations. Norms, activations, softmax and the embedding's lookup are not counted: they
move bytes rather than multiply. Pairs of a query and a key are counted in two ways, named apart: *visible* pairs are
what the architecture asks for, *computed* pairs are what training's kernel multiplies, seen or not.
"""

from collections.abc import Callable

from pydantic import computed_field

from archlab.config.base import Base
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import BIASED, ModelConfig, Shaw
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.model.visibility import is_plain_causal, visible_pairs

BACKWARD = 2
"""The backward pass in forward passes: one product for the inputs' gradient and one for the weights'."""


class Flops(Base):
    """FLOPs per token by part, averaged over the positions of one sequence."""

    projections: float
    """Query, key, value and output projections."""
    scores: float
    """q.k and the weighted sum of values."""
    mlp: float
    """MLP projections."""
    head: float
    """Last hidden state to logits; the same whether tied or not."""

    @computed_field
    @property
    def total(self) -> float:
        """All of them."""
        return sum(dict(self).values())


Pairs = Callable[[LayerConfig, int], int]
"""(layer, tokens in a sequence) -> pairs of a query and a key in that sequence."""


def visible(layer: LayerConfig, seq_len: int) -> int:
    """Pairs in which the query sees the key."""
    return visible_pairs(layer.attention, seq_len)


def computed(layer: LayerConfig, seq_len: int) -> int:
    """Pairs that are multiplied in training without packed documents.

    The fused kernel skips what a plain causal mask hides (but for the edges of its tiles). A window, a bias, a soft cap
    or dropout on the weights takes another path, which multiplies every query with every key. (On a GPU the flex kernel
    skips hidden tiles under a soft cap, too. That is not counted, so that a budget does not depend on the machine.)
    """
    attention = layer.attention
    masked = not is_plain_causal(attention, seq_len) or attention.softcap is not None
    biased = layer.position.kind in BIASED
    return seq_len**2 if masked or biased or layer.dropout.attention else visible(layer, seq_len)


def whole_square(_layer: LayerConfig, seq_len: int) -> int:
    """Every query with every key: what packed documents cost, whose mask is different in every window."""
    return seq_len**2


def forward_flops(model: ModelConfig, seq_len: int, pairs: Pairs = visible) -> Flops:
    """FLOPs per token of a forward pass over a sequence of `seq_len` tokens."""
    layers = layer_configs(model)
    return Flops(
        projections=float(sum(map(_projections, layers))),
        scores=sum(_per_pair(layer) * pairs(layer, seq_len) for layer in layers) / seq_len,
        mlp=float(sum(map(_mlp, layers))),
        head=_head(model),
    )


def training_flops(model: ModelConfig, seq_len: int, pairs: Pairs = visible) -> float:
    """FLOPs per token, forward and backward: 3 times the forward pass; nothing is recomputed."""
    return (1 + BACKWARD) * forward_flops(model, seq_len, pairs).total


def computed_training_flops(config: Config) -> float:
    """FLOPs per token that training spends, hidden pairs that are multiplied all the same included."""
    train = resolve_train(config)
    return training_flops(config.model, train.seq_len, whole_square if train.document_mask else computed)


def _head(model: ModelConfig) -> float:
    """With a narrow embedding its two projections, too."""
    width = model.embedding.width
    return 2.0 * (model.d_model * model.vocab_size if width is None else width * (model.vocab_size + 2 * model.d_model))


def _projections(layer: LayerConfig) -> int:
    heads = layer.attention
    return 2 * layer.d_model * heads.head_dim * (2 * heads.n_heads + 2 * heads.n_kv_heads)


def _per_pair(layer: LayerConfig) -> int:
    """One product with k and one with v (with Shaw's vectors one more), in every query head."""
    products = 3 if isinstance(layer.position, Shaw) else 2
    return products * 2 * layer.attention.n_heads * layer.attention.head_dim


def _mlp(layer: LayerConfig) -> int:
    matrices = 3 if layer.mlp.kind == "gated" else 2
    return 2 * matrices * layer.d_model * layer.mlp.d_ff
