"""Code that a flattened file contains instead of some parts of archlab.model.

It is the forward pass without cache, padding and document boundaries, and plain code for a matrix product that is a
custom operator in archlab.model. `flatten` reads and evaluates this module like those of archlab.model. The module
itself never runs.
"""

import torch
from torch import Tensor, nn

from archlab.config.layers import LayerConfig, final_norm
from archlab.config.model_schema import ModelConfig
from archlab.model.context import Context, ForwardPass
from archlab.model.decoder import Head, SegmentEmbedding, Summed, TokenEmbedding
from archlab.model.norms import make_norm
from archlab.model.positions import make_positions, make_shared_bias
from archlab.model.state import NO_STATES


class Decoder(nn.Module):
    """Language model: token ids to logits of the next token, at every position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config)
        self.segments = SegmentEmbedding(config) if config.embedding.segments else None
        self.positions = make_positions(config)
        self.position_bias = make_shared_bias(config)
        self.summed = Summed(config)
        self.norm = make_norm(final_norm(config), config.d_model)
        self.head = Head(config)

    def embedded(self, tokens_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the embedded tokens with their positions: [B, T] -> [B, T, D]."""
        x_BTD = self.embedding(tokens_BT)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(tokens_BT))
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(positions_BT, x_BTD.dtype)
        return self.summed(x_BTD)

    def context(self, layer: LayerConfig, positions_BT: Tensor) -> Context:
        """Return the Context that layers with the config `layer` get."""
        lengths_BT = positions_BT[:, -1:] + 1
        forward_pass = ForwardPass(
            positions_BT,
            lengths_BT,
            starts_BT=None,
            is_whole=True,
            is_padded=False,
            prefix_B11=None,
            cache=None,
            dtype=torch.float32,
        )
        return forward_pass.context(layer, NO_STATES, self.position_bias, None)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return the logits of the next token: [B, T, D] -> [B, T, V]."""
        x_BTD = self.norm(x_BTD)
        return self.head(x_BTD, self.embedding.weight)


def grouped_linear(x_ND: Tensor, weight_EOD: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each row by the matrix of its expert: [N, D] -> [N, O].

    `ends_E[e]` is the index after the last row of expert e.
    """
    rows_E = ends_E.diff(prepend=ends_E.new_zeros(1)).tolist()
    pairs = zip(x_ND.split(rows_E), weight_EOD, strict=True)
    return torch.cat([x_RD @ weight_OD.T for x_RD, weight_OD in pairs])
