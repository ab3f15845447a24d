"""Real-gated linear recurrent unit (RG-LRU) of Griffin (De 2024).

Shapes: B batch, T tokens, D d_model, W channels, H groups of P channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import RoleName, Site
from archlab.config.components.rglru import RGLRU as RGLRUConfig  # noqa: N811 - an acronym, not a constant
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32
from archlab.model.context import Context
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv
from archlab.model.state import State


class BlockGate(nn.Module):
    """Gate sigmoid(W u + b), with a block-diagonal W: one block per group of channels."""

    timed_as = "scans"

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, channels // groups, channels // groups))
        self.bias = nn.Parameter(torch.empty(channels))
        self.roles: dict[str, RoleName] = {"weight": "input"}
        self.constants = {"bias": 0.0}

    def forward(self, u_BTW: Tensor) -> Tensor:
        """Return the gate in at least float32: [B, T, W] -> [B, T, W]."""
        u_BTHP = u_BTW.unflatten(-1, self.weight.shape[:2])
        gate_BTW = torch.einsum("bthp,hop->btho", u_BTHP, self.weight).flatten(-2)
        return torch.sigmoid(at_least_float32(gate_BTW) + self.bias)


@implements(RGLRUConfig)
class RGLRU(nn.Module):
    """RG-LRU: S <- a S + sqrt(1 - a^2) i u with a = exp(-8 r softplus(Lambda)). The output is out(gelu(gate) * S).

    u is the output of a short convolution, i the input gate, and r the recurrence gate.
    """

    timed_as = "scans"

    def __init__(self, config: RGLRUConfig, site: Site) -> None:
        super().__init__()
        width = config.lru_width
        self.gate = Projection(site.d_model, width, bias=True, role="input")
        self.x = Projection(site.d_model, width, bias=True, role="input")
        self.conv = CausalConv((width,), config.taps, bias=True, activation=make_activation("identity"))
        self.input_gate, self.forget_gate = (BlockGate(width, config.n_heads) for _ in range(2))
        self.Lambda = nn.Parameter(torch.empty(width))
        self.constants = {"Lambda": _initial_rates(width)}
        self.activation = make_activation("gelu_tanh")
        self.out = Projection(width, site.d_model, bias=True, role="output")

    def forward(self, x_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        u_BTW = self.conv(self.x(x_BTD), context, state)
        log_decay_BTW = -8 * self.forget_gate(u_BTW) * F.softplus(at_least_float32(self.Lambda), threshold=40)
        is_first_BT1 = (context.positions_BT == 0)[..., None]  # of a text or document, which has no earlier state
        tiny = torch.finfo(log_decay_BTW.dtype).tiny  # avoids an infinite gradient of the square root at 0
        share_BTW = (-torch.expm1(2 * log_decay_BTW)).clamp_min(tiny).sqrt().masked_fill(is_first_BT1, 1)
        decay_BTW = log_decay_BTW.exp().masked_fill(is_first_BT1, 0)
        S_BTW, left_BTW = scan(decay_BTW, share_BTW * self.input_gate(u_BTW) * u_BTW)
        if state is not None:
            S_BTW = S_BTW + left_BTW * state["scan"][:, None].clone()  # autograd saves it; it is overwritten below
            state["scan"].copy_(S_BTW[:, -1].detach())
        return self.out((self.activation(at_least_float32(self.gate(x_BTD))) * S_BTW).to(x_BTD.dtype))


def scan(decay_BTW: Tensor, added_BTW: Tensor) -> tuple[Tensor, Tensor]:
    """Compute S_t = a_t S_{t-1} + b_t, starting from S = 0. Return S_t and the product of a_1 to a_t for all t.

    In each round, two adjacent runs of tokens are combined into one of twice the length (Hillis & Steele 1986).
    """
    run, T = 1, decay_BTW.shape[1]
    while run < T:
        added_BTW = added_BTW + decay_BTW * F.pad(added_BTW[:, :-run], (0, 0, run, 0))
        decay_BTW = decay_BTW * F.pad(decay_BTW[:, :-run], (0, 0, run, 0), value=1)
        run *= 2
    return added_BTW, decay_BTW


def _initial_rates(channels: int) -> Tensor:
    """Return the initial Lambda. With it, the decays a are 0.9 to 0.999 if the recurrence gate r is 1.

    The paper draws a uniformly. Here the values of a are evenly spaced over the channels.
    """
    a = 0.9 + 0.099 * (torch.arange(channels, dtype=torch.float64) + 0.5) / channels
    return (-a.log() / 8).expm1().log()
