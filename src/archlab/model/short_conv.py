"""Gated short convolution of LFM2. Shapes: B batch, T tokens, D d_model."""

from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.short_conv import ShortConv as Config
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.context import Context
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv
from archlab.model.state import State


@implements(Config)
class ShortConv(nn.Module):
    """Gated short convolution: out(output_gate * conv(input_gate * x)). No activation is applied to the gates."""

    def __init__(self, config: Config, site: Site) -> None:
        super().__init__()
        width = config.channels(site.d_model)
        self.x = Projection(site.d_model, width, bias=config.bias, role="input")
        self.input_gate = Projection(site.d_model, width, bias=config.bias, role="input")
        self.output_gate = Projection(site.d_model, width, bias=config.bias, role="input")
        self.conv = CausalConv((width,), config.taps, bias=config.bias, activation=make_activation("identity"))
        self.out = Projection(width, site.d_model, bias=config.bias, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        mixed_BTD = self.conv(self.input_gate(u_BTD) * self.x(u_BTD), context, state)
        return self.out(self.output_gate(u_BTD) * mixed_BTD)
