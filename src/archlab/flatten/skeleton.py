"""Code that a flattened file contains instead of some parts of archlab.model.

It is the forward pass without cache, document boundaries and padding of the tokens. It also has plain code for a matrix
product that is a custom operator in archlab.model. `flatten` reads and evaluates this module like those of
archlab.model. The module itself never runs.
"""

import sys

import torch
from torch import Tensor, nn

from archlab.config.components.visibility import Visibility, reaches_all, visible
from archlab.config.layers import LayerConfig, final_norm
from archlab.config.model_schema import ModelConfig
from archlab.model.context import Context, ForwardPass
from archlab.model.decoder import Head, SegmentEmbedding, Summed, TokenEmbedding
from archlab.model.masks import TensorMask
from archlab.model.norms import make_norm
from archlab.model.positions import make_positions, make_shared_bias
from archlab.model.state import NO_STATES, Source


class Vocabulary(nn.Module):
    """First and last modules of a decoder: the embedding of tokens and segments, and the head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config)
        self.segments = SegmentEmbedding(config) if config.embedding.segments else None
        self.head = Head(config)

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """Return the embedded tokens: [B, T] -> [B, T, D]."""
        x_BTD = self.embedding(tokens_BT)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(tokens_BT))
        return x_BTD

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return the logits of the next token: [B, T, D] -> [B, T, V]."""
        return self.head(x_BTD, self.embedding.weight)


class Stack(nn.Module):
    """Modules around the layers of a decoder or an encoder: the position embedding before them, and the norm after
    them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = make_positions(config)
        self.position_bias = make_shared_bias(config)
        self.summed = Summed(config)
        self.norm = make_norm(final_norm(config), config.d_model)

    def entered(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the input of the first layer, from embedded tokens: [B, T, D] -> [B, T, D]."""
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(positions_BT, x_BTD.dtype)
        return self.summed(x_BTD)

    def context(
        self, layer: LayerConfig, positions_BT: Tensor, lengths_B: Tensor | None, source: Source | None
    ) -> Context:
        """Return the Context that layers with the config `layer` get.

        `lengths_B` is the number of tokens in each row, if there is padding. `source` is what cross-attention reads.
        """
        is_padded = lengths_B is not None
        forward_pass = ForwardPass(
            positions_BT,
            lengths_BT=lengths_B[:, None] if is_padded else positions_BT[:, -1:] + 1,
            starts_BT=None,
            is_whole=True,
            is_padded=is_padded,
            prefix_B11=None,
            cache=None,
            dtype=torch.float32,
            source=source,
        )
        return forward_pass.context(layer, NO_STATES, self.position_bias, None)


def cross_context(source: Source, positions_BT: Tensor) -> Context:
    """Return the context of cross-attention. `source.is_real_BS` is [B, 1, S] here: one mask for all queries."""
    mask = TensorMask(source.is_real_BS)
    return Context(positions_BT, None, None, mask, None, None, None, None, source.hidden_BSD)


def mask_with_padding(rule: Visibility, positions_BT: Tensor) -> Tensor:
    """Return the attention mask of sequences with padding at their ends, from their positions: [B, T] -> [B, T, T]."""
    query, key = positions_BT[:, :, None], positions_BT[:, None, :]
    seen = key >= 0
    if not reaches_all(rule, sys.maxsize):
        seen = seen & visible(rule, query, key)
    # Padding sees all padding, because a softmax over no keys would be NaN.
    is_same = key == query
    return seen | is_same


def grouped_linear(x_ND: Tensor, weight_EOD: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each row by the matrix of its expert: [N, D] -> [N, O].

    `ends_E[e]` is the index after the last row of expert e.
    """
    rows_E = ends_E.diff(prepend=ends_E.new_zeros(1)).tolist()
    pairs = zip(x_ND.split(rows_E), weight_EOD, strict=True)
    return torch.cat([x_RD @ weight_OD.T for x_RD, weight_OD in pairs])
