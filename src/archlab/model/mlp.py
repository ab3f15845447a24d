"""The feed-forward branch. Shapes: B batch, T tokens, D d_model, F d_ff."""

from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.config.mlp import ResolvedDense
from archlab.config.norm import NoNorm
from archlab.model.activations import make_activation
from archlab.model.context import Context
from archlab.model.init import Projection
from archlab.model.norms import make_norm
from archlab.model.state import State


class MLP(nn.Module):
    """plain: down(act(up x)). gated: down(act(gate x) * up x) (Shazeer 2020)."""

    def __init__(self, config: ResolvedDense, layer: LayerConfig) -> None:
        super().__init__()
        self.activation = make_activation(config.activation)
        self.up = Projection(layer.d_model, config.d_ff, bias=config.bias, role="input")
        self.gate = (
            Projection(layer.d_model, config.d_ff, bias=config.bias, role="input") if config.kind == "gated" else None
        )
        self.sub_norm = make_norm(layer.norm if config.sub_norm else NoNorm(), config.d_ff)
        self.down = Projection(config.d_ff, layer.d_model, bias=config.bias, role="output")

    def forward(self, x_BTD: Tensor, context: Context | None = None, state: State | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        up_BTF = self.up(x_BTD)
        inner_BTF = self.activation(up_BTF) if self.gate is None else self.activation(self.gate(x_BTD)) * up_BTF
        return self.down(self.sub_norm(inner_BTF))
