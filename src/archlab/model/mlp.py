"""Feed-forward branch (MLP). Shapes: B batch, T tokens, D d_model, F d_ff."""

from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.norm import NoNorm
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import as_autocast
from archlab.model.context import Context
from archlab.model.norms import make_norm
from archlab.model.projection import Projection
from archlab.model.state import State


@implements(Dense)
class MLP(nn.Module):
    """Feed-forward branch: down(act(up x)), or gated down(act(gate x) * (up x + offset)) (Shazeer 2020).

    If the config sets `clamp`, gate x and up x are clamped first.
    """

    def __init__(self, config: Dense, site: Site) -> None:
        super().__init__()
        self.config, self.activation = config, make_activation(config.activation)
        self.up = Projection(site.d_model, config.d_ff, bias=config.bias, role="input")
        self.gate = (
            Projection(site.d_model, config.d_ff, bias=config.bias, role="input")
            if isinstance(config, GatedMLP)
            else None
        )
        self.sub_norm = make_norm(site.norm if config.sub_norm else NoNorm(), config.d_ff)
        self.over_all = {"sub_norm": config.d_ff}
        self.down = Projection(config.d_ff, site.d_model, bias=config.bias, role="output")

    def forward(self, x_BTD: Tensor, context: Context | None = None, state: State | None = None) -> Tensor:
        """Apply the MLP: [B, T, D] -> [B, T, D]."""
        (x_BTD,) = as_autocast(x_BTD)
        up_BTF = self.up(x_BTD)
        gate_BTF = None if self.gate is None else self.gate(x_BTD)
        return self.down(self.sub_norm(inner(self.config, self.activation, gate_BTF, up_BTF)))


def inner(config: Dense, activation: nn.Module, gate: Tensor | None, up: Tensor) -> Tensor:
    """Return the input of the down projection, given the outputs of the projections `gate` and `up`.

    `gate` is None in an MLP without a gate.
    """
    if gate is None or not isinstance(config, GatedMLP):
        return activation(up)
    if config.clamp is not None:
        gate, up = gate.clamp(max=config.clamp), up.clamp(-config.clamp, config.clamp)
    return activation(gate) * (up + config.up_offset if config.up_offset else up)
