"""The feed-forward branch. Shapes: B batch, T tokens, D d_model, F d_ff."""

from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.model.activations import ACTIVATIONS
from archlab.model.init import Projection


class PlainMLP(nn.Module):
    """W2 act(W1 x)."""

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        config = layer.mlp
        self.activation = ACTIVATIONS[config.activation]
        self.up = Projection(layer.d_model, config.d_ff, bias=config.bias, role="input")
        self.down = Projection(config.d_ff, layer.d_model, bias=config.bias, role="output")

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.down(self.activation(self.up(x_BTD)))


class GatedMLP(PlainMLP):
    """W2 (act(W1 x) * V x) (Shazeer 2020); the gate W1 is the part that is activated."""

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__(layer)
        self.gate = Projection(layer.d_model, layer.mlp.d_ff, bias=layer.mlp.bias, role="input")

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))


def make_mlp(layer: LayerConfig) -> nn.Module:
    """The MLP that the layer's config names."""
    return {"plain": PlainMLP, "gated": GatedMLP}[layer.mlp.kind](layer)
