"""Mixer of Mamba 1: a selective state-space model with d_state decays per channel (Gu & Dao 2023).

Shapes: B batch, T tokens, D d_model, W channels, R dt_rank, N d_state. Lowercase axes: b batch, q token of a chunk, n
d_state, w channel.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archlab.config.components.component import Site
from archlab.config.components.mamba import LARGEST_CHUNK, chunk_size
from archlab.config.components.mamba import Mamba as MambaConfig
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.graphs import compiled_once, outside_graphs
from archlab.model.norms import make_norm
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv, Gate, initial_decay
from archlab.model.state import State, is_step


@implements(MambaConfig)
class Mamba(nn.Module):
    """Mamba 1 mixer: S <- exp(-dt exp(A_log)) S + dt x B^T and y = S C + D x in every channel.

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
        self.dt_norm = make_norm(config.inner_norm, rank)
        self.B_norm, self.C_norm = (make_norm(config.inner_norm, d_state) for _ in range(2))
        self.dt = Projection(rank, width, bias=False, role="input")
        self.A_log = nn.Parameter(torch.empty(width, d_state))
        self.dt_bias, self.D = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.constants = {
            "A_log": torch.arange(1, d_state + 1, dtype=torch.float64).log().expand(width, d_state),
            "dt_bias": initial_decay(width, 1, 16)["dt_bias"],
            "D": 1.0,
        }
        self.norm = Gate()
        self.out = Projection(width, site.d_model, bias=config.out_bias, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        c_BTW = self.conv(self.x(u_BTD), context, state)
        dt_BTW = at_least_float32(self.dt(self.dt_norm(self.dt_low(c_BTW)))) + self.dt_bias
        dt_BTW = F.softplus(dt_BTW, threshold=40)
        x_BTW = at_least_float32(c_BTW)
        B_BTN, C_BTN = at_least_float32(self.B_norm(self.B(c_BTW))), at_least_float32(self.C_norm(self.C(c_BTW)))
        is_first_BT = None if context.starts_BT is None else context.positions_BT == 0
        initial = None if state is None else state["scan"].clone()  # it is overwritten below
        inputs = (x_BTW, dt_BTW, at_least_float32(self.A_log), B_BTN, C_BTN, initial, is_first_BT)
        with without_autocast(u_BTD):
            run = scan if is_step(u_BTD.shape[1]) else _scan_in_chunks
            y_BTW, S_BNW = run(*inputs)[:2]
        if state is not None:
            state["scan"].copy_(S_BNW.detach())
        y_BTW = y_BTW + at_least_float32(self.D) * x_BTW
        return self.out(self.norm(y_BTW, self.gate(u_BTD)).to(u_BTD.dtype))


def _scan_in_chunks(*inputs: Any) -> tuple[Tensor, ...]:
    """Return the outputs of `scan` and the new state. In compiled code, each chunk is one call.

    An exported graph contains all chunks.
    """
    if torch.compiler.is_exporting():
        return scan(*inputs)[:2]
    return _outside_graphs(*inputs, compiles=torch.compiler.is_compiling())


@outside_graphs  # a graph of all tokens would take minutes to compile
def _outside_graphs(*inputs: Any, compiles: bool) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        return _Scan.apply(*inputs, compiles)  # pyright: ignore[reportReturnType]
    return scan(*inputs, chunk=compiled_once(_chunk) if compiles else _chunk)[:2]


def _chunk(
    x_bqw: Tensor, dt_bqw: Tensor, A_nw: Tensor, B_bqn: Tensor, C_bqn: Tensor, S_bnw: Tensor, is_first_bq: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Process the tokens of a chunk, from a state. Return the outputs and the new state."""
    decay_bqnw, added_bqnw = _changes(x_bqw, dt_bqw, A_nw, B_bqn, is_first_bq)
    states_bqnw = _states(decay_bqnw, added_bqnw, S_bnw)
    # The last state is cloned, because a view would keep the states of the whole chunk in memory.
    return torch.einsum("bqnw,bqn->bqw", states_bqnw, C_bqn), states_bqnw[:, -1].clone()


def scan(
    x_BTW: Tensor, dt_BTW: Tensor, A_log_WN: Tensor, B_BTN: Tensor, C_BTN: Tensor, S_BNW: Tensor | None,
    is_first_BT: Tensor | None, chunk: Callable[..., tuple[Tensor, Tensor]] = _chunk,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Process all tokens chunk by chunk, from a state (None means zeros). Return the outputs without D x, the new
    state, and the state before each chunk.

    `is_first_BT` says which tokens start a document. They do not see the state before them. `chunk` processes the
    tokens of one chunk.
    """
    size, A_NW = _chunk_size(x_BTW), -A_log_WN.exp().T.contiguous()
    S_bnw = x_BTW.new_zeros(len(x_BTW), *A_NW.shape) if S_BNW is None else S_BNW
    outputs: list[Tensor] = []
    before: list[Tensor] = []
    for start in range(0, x_BTW.shape[1], size):
        q = slice(start, start + size)
        is_first_bq = None if is_first_BT is None else is_first_BT[:, q]
        before.append(S_bnw)
        y_bqw, S_bnw = chunk(x_BTW[:, q], dt_BTW[:, q], A_NW, B_BTN[:, q], C_BTN[:, q], S_bnw, is_first_bq)
        outputs.append(y_bqw)
    return torch.cat(outputs, 1), S_bnw, before


def _changes(
    x_bqw: Tensor, dt_bqw: Tensor, A_nw: Tensor, B_bqn: Tensor, is_first_bq: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the factor by which each token multiplies the state, and what it adds: [b, q, n, w] each."""
    decay_bqnw = (dt_bqw[:, :, None] * A_nw).exp()
    if is_first_bq is not None:
        decay_bqnw = decay_bqnw.masked_fill(is_first_bq[..., None, None], 0)
    return decay_bqnw, (dt_bqw * x_bqw)[:, :, None] * B_bqn[..., None]


GPU_CHUNK = 128
"""Largest number of tokens in a chunk on a GPU, where each operation costs the start of a kernel."""


def _has_rows(x: Tensor) -> bool:
    """Return whether chunks are divided into rows that are processed side by side. A GPU then starts fewer kernels."""
    return x.is_cuda


def _chunk_size(x_BTW: Tensor) -> int:
    return min(GPU_CHUNK, x_BTW.shape[1]) if _has_rows(x_BTW) else chunk_size(x_BTW.shape[1])


def _states(decay_bqnw: Tensor, added_bqnw: Tensor, S_bnw: Tensor) -> Tensor:
    """Return the state after each token of a chunk.

    Each row of a chunk starts from a state of zeros. What the state before the row adds is added afterwards.
    """
    if not _has_rows(decay_bqnw) or decay_bqnw.shape[1] <= LARGEST_CHUNK:
        return _states_in_turn(decay_bqnw, added_bqnw, S_bnw)
    n_tokens = decay_bqnw.shape[1]
    missing = -n_tokens % LARGEST_CHUNK
    decay_brqnw, added_brqnw = (
        F.pad(y, (0, 0, 0, 0, 0, missing), value=neutral).unflatten(1, (-1, LARGEST_CHUNK))
        for y, neutral in ((decay_bqnw, 1.0), (added_bqnw, 0.0))
    )
    own_xqnw = _states_in_turn(decay_brqnw.flatten(0, 1), added_brqnw.flatten(0, 1), S_bnw.new_zeros(()))
    own_brqnw = own_xqnw.unflatten(0, (len(S_bnw), -1))
    since_brqnw = decay_brqnw.cumprod(2)
    after_brnw = _states_in_turn(since_brqnw[:, :, -1], own_brqnw[:, :, -1], S_bnw)
    before_brnw = torch.cat((S_bnw[:, None], after_brnw[:, :-1]), 1)
    return torch.addcmul(own_brqnw, since_brqnw, before_brnw[:, :, None]).flatten(1, 2)[:, :n_tokens]


def _states_in_turn(decay_bqnw: Tensor, added_bqnw: Tensor, S_bnw: Tensor) -> Tensor:
    states: list[Tensor] = []
    for q in range(decay_bqnw.shape[1]):
        S_bnw = torch.addcmul(added_bqnw[:, q], decay_bqnw[:, q], S_bnw)
        states.append(S_bnw)
    return torch.stack(states, 1)


def _chunk_gradients(
    x_bqw: Tensor, dt_bqw: Tensor, A_nw: Tensor, B_bqn: Tensor, C_bqn: Tensor, S_bnw: Tensor,
    is_first_bq: Tensor | None, of_y_bqw: Tensor, of_S_bnw: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the first six inputs of `_chunk`, from those of its outputs."""
    decay_bqnw, added_bqnw = _changes(x_bqw, dt_bqw, A_nw, B_bqn, is_first_bq)
    states_bqnw = _states(decay_bqnw, added_bqnw, S_bnw)
    of_C_bqn = torch.einsum("bqnw,bqw->bqn", states_bqnw, of_y_bqw)
    # Every state affects the output of its token and, through the decay, the next state.
    of_states_bqnw = C_bqn[..., None] * of_y_bqw[:, :, None]
    if not _has_rows(decay_bqnw) or decay_bqnw.shape[1] <= LARGEST_CHUNK:
        for q in reversed(range(of_states_bqnw.shape[1])):
            of_S_bnw = of_states_bqnw[:, q].add_(of_S_bnw) * decay_bqnw[:, q]
    else:
        later_decay_bqnw = F.pad(decay_bqnw[:, 1:], (0, 0, 0, 0, 0, 1), value=1.0)
        of_states_bqnw = _states(later_decay_bqnw.flip(1), of_states_bqnw.flip(1), of_S_bnw).flip(1)
        of_S_bnw = of_states_bqnw[:, 0] * decay_bqnw[:, 0]
    of_added_bqw = torch.einsum("bqnw,bqn->bqw", of_states_bqnw, B_bqn)
    of_B_bqn = torch.einsum("bqnw,bqw->bqn", of_states_bqnw, dt_bqw * x_bqw)
    earlier_bqnw = torch.cat((S_bnw[:, None], states_bqnw[:, :-1]), 1)
    of_exponent_bqnw = of_states_bqnw.mul_(decay_bqnw).mul_(earlier_bqnw)
    of_A_nw = (of_exponent_bqnw * dt_bqw[:, :, None]).sum((0, 1))
    of_dt_bqw = x_bqw * of_added_bqw + of_exponent_bqnw.mul_(A_nw).sum(2)
    return dt_bqw * of_added_bqw, of_dt_bqw, of_A_nw, of_B_bqn, of_C_bqn, of_S_bnw


class _Scan(torch.autograd.Function):
    """`scan` that keeps one state per chunk for the backward pass, which computes the others again.

    The initial state and the new state have no gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, x_BTW: Tensor, dt_BTW: Tensor, A_log_WN: Tensor, B_BTN: Tensor, C_BTN: Tensor, S_BNW: Tensor | None,
        is_first_BT: Tensor | None, compiles: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        chunk = compiled_once(_chunk) if compiles else _chunk
        y_BTW, S_BNW, before = scan(x_BTW, dt_BTW, A_log_WN, B_BTN, C_BTN, S_BNW, is_first_BT, chunk)
        ctx.save_for_backward(x_BTW, dt_BTW, A_log_WN, B_BTN, C_BTN, is_first_BT, *before)
        ctx.gradients = compiled_once(_chunk_gradients) if compiles else _chunk_gradients
        ctx.mark_non_differentiable(S_BNW)
        return y_BTW, S_BNW

    @staticmethod
    @once_differentiable  # the states that are computed again have no gradients
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        x_BTW, dt_BTW, A_log_WN, B_BTN, C_BTN, is_first_BT, *before = ctx.saved_tensors
        size, A_NW = _chunk_size(x_BTW), -A_log_WN.exp().T.contiguous()
        of_tokens = tuple(torch.empty_like(y) for y in (x_BTW, dt_BTW, B_BTN, C_BTN))
        of_A_NW, of_S_bnw = torch.zeros_like(A_NW), torch.zeros_like(before[0])
        for c in reversed(range(len(before))):
            q = slice(c * size, (c + 1) * size)
            x_bqw, dt_bqw, B_bqn, C_bqn, of_y_bqw = (y[:, q] for y in (x_BTW, dt_BTW, B_BTN, C_BTN, gradients[0]))
            is_first_bq = None if is_first_BT is None else is_first_BT[:, q]
            of_x, of_dt, of_A_nw, of_B, of_C, of_S_bnw = ctx.gradients(
                x_bqw, dt_bqw, A_NW, B_bqn, C_bqn, before[c], is_first_bq, of_y_bqw, of_S_bnw
            )
            of_A_NW += of_A_nw
            for whole, part in zip(of_tokens, (of_x, of_dt, of_B, of_C), strict=True):
                whole[:, q] = part
        of_x_BTW, of_dt_BTW, of_B_BTN, of_C_BTN = of_tokens
        return of_x_BTW, of_dt_BTW, (of_A_NW * A_NW).T, of_B_BTN, of_C_BTN, None, None, None
