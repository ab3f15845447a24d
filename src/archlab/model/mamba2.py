"""Mixer of Mamba 2: a state-space model with one decay per head (Dao & Gu 2024).

Shapes: B batch, T tokens, D d_model, H heads, P head_dim, G groups, N d_state. Lowercase axes are as in recurrent.py;
in addition, g group, r head within its group, p head_dim, n d_state.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.mamba2 import Mamba2 as Mamba2Config
from archlab.config.components.norm import NoNorm
from archlab.config.components.recurrent import GatedRMSNorm
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv, Gate, GatedNorm, carried, chunked, decays, initial_decay, joined
from archlab.model.state import State, is_step


@implements(Mamba2Config)
class Mamba2(nn.Module):
    """Mamba 2 mixer: S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x in every head.

    x, B and C pass through a short convolution first.
    """

    timed_as = "scans"

    def __init__(self, config: Mamba2Config, site: Site) -> None:
        super().__init__()
        self.config = config
        width, n_heads, of_groups = config.inner_width, config.n_heads, config.n_groups * config.d_state
        self.gate = Projection(site.d_model, width, bias=config.in_bias, role="input")
        self.x = Projection(site.d_model, width, bias=config.in_bias, role="input")
        self.B = Projection(site.d_model, of_groups, bias=config.in_bias, role="input")
        self.C = Projection(site.d_model, of_groups, bias=config.in_bias, role="input")
        self.dt = Projection(site.d_model, n_heads, bias=config.in_bias, role="input")
        self.conv = CausalConv(
            config.conv_widths, config.taps, bias=config.conv_bias, activation=make_activation("silu")
        )
        self.A_log, self.dt_bias, self.D = (nn.Parameter(torch.empty(n_heads)) for _ in range(3))
        self.constants = {**initial_decay(n_heads, 1, 16), "D": 1.0}
        match config.norm:
            case GatedRMSNorm() as norm:
                self.norm = GatedNorm(norm, width // config.n_groups, config.n_groups)
            case NoNorm():
                self.norm = Gate()
        self.out = Projection(width, site.d_model, bias=config.out_bias, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        config = self.config
        xBC = self.conv(torch.cat((self.x(u_BTD), self.B(u_BTD), self.C(u_BTD)), -1), context, state)
        of_groups = config.n_groups * config.d_state
        x, B, C = at_least_float32(xBC).split((config.inner_width, of_groups, of_groups), -1)
        x_BTHP = x.unflatten(-1, (config.n_heads, -1))
        B_BTGN, C_BTGN = (y.unflatten(-1, (config.n_groups, -1)) for y in (B, C))
        dt_BTH = at_least_float32(self.dt(u_BTD)) + self.dt_bias
        dt_BTH = F.softplus(dt_BTH, threshold=40).clamp(config.dt_min, config.dt_max)
        log_decay_BTH = -dt_BTH * at_least_float32(self.A_log).exp()
        with without_autocast(u_BTD):
            write_BTHP = dt_BTH[..., None] * x_BTHP
            if state is not None and is_step(u_BTD.shape[1]):
                y_BTHP, S_BHPN = step(write_BTHP, log_decay_BTH, B_BTGN, C_BTGN, state["scan"])
            else:
                initial = None if state is None else state["scan"].clone()  # autograd saves it; it is overwritten below
                y_BTHP, S_BHPN = scan(write_BTHP, log_decay_BTH, B_BTGN, C_BTGN, initial, context.starts_BT)
        if state is not None:
            state["scan"].copy_(S_BHPN.detach())
        y_BTHP = y_BTHP + at_least_float32(self.D)[:, None] * x_BTHP
        return self.out(self.norm(y_BTHP.flatten(-2), self.gate(u_BTD)).to(u_BTD.dtype))


def step(
    x_BTHP: Tensor, log_decay_BTH: Tensor, B_BTGN: Tensor, C_BTGN: Tensor, S_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Process one token, T = 1. Return its output and the new state."""
    x_bgrp, B_bgn, C_bgn = x_BTHP[:, 0].unflatten(1, (B_BTGN.shape[2], -1)), B_BTGN[:, 0], C_BTGN[:, 0]
    decay_bgr = log_decay_BTH[:, 0].exp().unflatten(1, (B_BTGN.shape[2], -1))
    S_bgrpn = decay_bgr[..., None, None] * S_BHPN.unflatten(1, x_bgrp.shape[1:3])
    S_bgrpn = S_bgrpn + x_bgrp[..., None] * B_bgn[:, :, None, None]
    y_bgrp = (S_bgrpn * C_bgn[:, :, None, None]).sum(-1)
    return y_bgrp.flatten(1, 2)[:, None], S_bgrpn.flatten(1, 2)


def scan(
    x_BTHP: Tensor,
    log_decay_BTH: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    S_BHPN: Tensor | None = None,
    starts_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Process all tokens chunk by chunk, from a state (None means zeros). Return their outputs and the new state."""
    T, G = x_BTHP.shape[1], B_BTGN.shape[2]
    x_bcsgrp = chunked(x_BTHP).unflatten(3, (G, -1))
    B_bcsgn, C_bcqgn = chunked(B_BTGN), chunked(C_BTGN)
    between_bchqs, since_bchq, log_decay_bch = decays(chunked(log_decay_BTH), starts_BT)
    between_bcgrqs, since_bcgrq = (y.unflatten(2, (G, -1)) for y in (between_bchqs, since_bchq))
    # Within a chunk, the scan is attention with the weights C.B times the decay between the two tokens.
    weights_bcgrqs = torch.einsum("bcqgn,bcsgn->bcgqs", C_bcqgn, B_bcsgn)[:, :, :, None] * between_bcgrqs
    y_bcqgrp = torch.einsum("bcgrqs,bcsgrp->bcqgrp", weights_bcgrqs, x_bcsgrp)
    # Compute what every chunk adds to the state, then the state before every chunk.
    left_bcsgr = between_bcgrqs[..., -1, :].movedim(-1, 2)
    added_bcgrpn = torch.einsum("bcsgrp,bcsgn->bcgrpn", x_bcsgrp * left_bcsgr[..., None], B_bcsgn)
    S_bgrpn = torch.zeros_like(added_bcgrpn[:, 0]) if S_BHPN is None else S_BHPN.unflatten(1, (G, -1))
    if _combines_at_once(x_BTHP):
        before_bchpn, S_bhpn = carried(added_bcgrpn.flatten(2, 3), log_decay_bch, S_bgrpn.flatten(1, 2))
        before_bcgrpn, S_bgrpn = (y.unflatten(-3, (G, -1)) for y in (before_bchpn, S_bhpn))
    else:
        before: list[Tensor] = []
        for c in range(added_bcgrpn.shape[1]):
            before.append(S_bgrpn)
            S_bgrpn = since_bcgrq[:, c, ..., -1, None, None] * S_bgrpn + added_bcgrpn[:, c]
        before_bcgrpn = torch.stack(before, 1)
    read_bcqgrp = torch.einsum("bcqgn,bcgrpn->bcqgrp", C_bcqgn, before_bcgrpn)
    y_bcqgrp = y_bcqgrp + since_bcgrq.movedim(-1, 2)[..., None] * read_bcqgrp
    return joined(y_bcqgrp.flatten(3, 4), T), S_bgrpn.flatten(1, 2)


def _combines_at_once(x: Tensor) -> bool:
    """Return whether the states of all chunks are combined by one product. It takes more FLOPs than the loop over
    chunks, but fewer kernels, so it is faster on a GPU."""
    return x.is_cuda
