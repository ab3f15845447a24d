"""Mixer of Mamba 1: a selective state-space model with a state per channel (Gu & Dao 2023).

Shapes: B batch, T tokens, D d_model, W channels, N d_state. Lowercase axes: b batch, c chunk, q token of a chunk, w
channel, n d_state.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.mamba import Mamba as MambaConfig
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv, Gate, initial_decay
from archlab.model.state import State


@implements(MambaConfig)
class Mamba(nn.Module):
    """Mamba 1 mixer: S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x, with one row of S per channel.

    x passes through a short convolution first. dt, B and C are projections of its output.
    """

    timed_as = "scans"

    def __init__(self, config: MambaConfig, site: Site) -> None:
        super().__init__()
        width, d_state, rank = config.inner_width, config.d_state, config.dt_rank
        self.gate = Projection(site.d_model, width, bias=config.in_bias, role="input")
        self.x = Projection(site.d_model, width, bias=config.in_bias, role="input")
        self.conv = CausalConv((width,), config.taps, bias=config.conv_bias, activation=make_activation("silu"))
        self.dt_low = Projection(width, rank, bias=False, role="input")
        self.B = Projection(width, d_state, bias=False, role="input")
        self.C = Projection(width, d_state, bias=False, role="input")
        self.dt = Projection(rank, width, bias=False, role="input")
        self.A_log = nn.Parameter(torch.empty(width, d_state))
        self.dt_bias, self.D = (nn.Parameter(torch.empty(width)) for _ in range(2))
        log_A_N = torch.arange(1, d_state + 1, dtype=torch.float64).log()
        self.constants = {
            "A_log": log_A_N.expand(width, d_state),
            "dt_bias": initial_decay(width, 1, 16)["dt_bias"],
            "D": 1.0,
        }
        self.norm = Gate()
        self.out = Projection(width, site.d_model, bias=config.out_bias, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        c_BTW = self.conv(self.x(u_BTD), context, state)
        dt_BTW = F.softplus(at_least_float32(self.dt(self.dt_low(c_BTW))) + self.dt_bias, threshold=40)
        x_BTW, B_BTN, C_BTN = (at_least_float32(y) for y in (c_BTW, self.B(c_BTW), self.C(c_BTW)))
        log_decay_BTWN = -dt_BTW[..., None] * at_least_float32(self.A_log).exp()
        is_first_BT11 = (context.positions_BT == 0)[..., None, None]  # of a text or document
        with without_autocast(u_BTD):
            decay_BTWN = log_decay_BTWN.exp().masked_fill(is_first_BT11, 0)
            added_BTWN = (dt_BTW * x_BTW)[..., None] * B_BTN[:, :, None]
            initial = torch.zeros_like(added_BTWN[:, 0]) if state is None else state["scan"].clone()
            S_BTWN = scan(decay_BTWN, added_BTWN, initial)
            y_BTW = torch.einsum("btwn,btn->btw", S_BTWN, C_BTN)
        if state is not None:
            state["scan"].copy_(S_BTWN[:, -1].detach())
        y_BTW = y_BTW + at_least_float32(self.D) * x_BTW
        return self.out(self.norm(y_BTW, self.gate(u_BTD)).to(u_BTD.dtype))


def scan(decay_BTWN: Tensor, added_BTWN: Tensor, S_BWN: Tensor) -> Tensor:
    """Return the state after each token, S_t = decay_t S_{t-1} + added_t, from the state before the first token.

    The first loop is over the tokens of a chunk, for all chunks in parallel. The second loop is over the chunks. With
    about sqrt(T) tokens per chunk, both loops are short.
    """
    T = decay_BTWN.shape[1]
    size = math.ceil(math.sqrt(T))
    padding = (0, 0, 0, 0, 0, -T % size)
    decay_bcqwn = F.pad(decay_BTWN, padding).unflatten(1, (-1, size))
    added_bcqwn = F.pad(added_BTWN, padding).unflatten(1, (-1, size))
    within, since = [added_bcqwn[:, :, 0]], [decay_bcqwn[:, :, 0]]
    for q in range(1, size):
        within.append(decay_bcqwn[:, :, q] * within[-1] + added_bcqwn[:, :, q])
        since.append(decay_bcqwn[:, :, q] * since[-1])
    within_bcqwn, since_bcqwn = torch.stack(within, 2), torch.stack(since, 2)
    before: list[Tensor] = []
    for c in range(decay_bcqwn.shape[1]):
        before.append(S_BWN)
        S_BWN = since_bcqwn[:, c, -1] * S_BWN + within_bcqwn[:, c, -1]
    states_bcqwn = within_bcqwn + since_bcqwn * torch.stack(before, 1)[:, :, None]
    return states_bcqwn.flatten(1, 2)[:, :T]
