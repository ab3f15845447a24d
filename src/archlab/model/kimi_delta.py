"""Kimi delta attention (Kimi Team 2025): the gated delta rule with one decay for each row of the state.

Axes are as in gated_delta.py; in addition, p pair of neighboring blocks of tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.kimi_delta import KimiDelta as KimiDeltaConfig
from archlab.config.components.kimi_delta import padded_chunk
from archlab.config.components.recurrent import GatedRMSNorm
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.gated_delta import Comparison, chunk_by_chunk, in_heads, step
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv, GatedNorm, chunked, initial_decay, starts_in_chunks, sum_up_to
from archlab.model.state import State, is_step


@implements(KimiDeltaConfig)
class KimiDelta(nn.Module):
    """Gated delta rule with a vector a of decays: S <- diag(a) S; S <- S + k (beta (v - S^T k))^T; o = S^T q.

    The output gate is a sigmoid.
    """

    timed_as = "scans"

    def __init__(self, config: KimiDeltaConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        self.q = Projection(site.d_model, config.key_width, bias=False, role="input")
        self.k = Projection(site.d_model, config.key_width, bias=False, role="input")
        self.v = Projection(site.d_model, config.value_width, bias=False, role="input")
        self.gate = from_input(config, site, config.value_width)
        self.beta = Projection(site.d_model, config.n_value_heads, bias=False, role="input")
        self.decay = from_input(config, site, config.decay_width)
        self.conv = CausalConv(config.conv_widths, config.taps, bias=False, activation=make_activation("silu"))
        self.A_log = nn.Parameter(torch.empty(config.n_value_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.decay_width))
        A_log = initial_decay(config.n_value_heads, 1, 16)["A_log"]
        self.constants = {**initial_decay(config.decay_width, 1, 16), "A_log": A_log}
        norm = GatedRMSNorm(eps=config.norm_eps, gate="after")
        self.norm = GatedNorm(norm, config.value_dim, activation="sigmoid")
        self.out = Projection(config.value_width, site.d_model, bias=False, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        qkv = self.conv(torch.cat((self.q(u_BTD), self.k(u_BTD), self.v(u_BTD)), -1), context, state)
        q_BTXK, k_BTXK, v_BTHV = in_heads(self.config, qkv)
        beta_BTH = torch.sigmoid(at_least_float32(self.beta(u_BTD))) * (2 if self.config.negative_eigenvalues else 1)
        x_BTHK = (at_least_float32(self.decay(u_BTD)) + self.dt_bias).unflatten(-1, (self.config.n_value_heads, -1))
        A_H1 = at_least_float32(self.A_log).exp()[:, None]
        if self.config.decay_bound is None:
            log_decay_BTHK = -F.softplus(x_BTHK, threshold=40) * A_H1
        else:
            log_decay_BTHK = -self.config.decay_bound * torch.sigmoid(A_H1 * x_BTHK)
        with without_autocast(u_BTD):
            if state is not None and is_step(u_BTD.shape[1]):
                o_BTHV, S_BHKV = step(q_BTXK, k_BTXK, v_BTHV, beta_BTH, log_decay_BTHK, state["scan"])
            else:
                initial = None if state is None else state["scan"].clone()  # autograd saves it; it is overwritten below
                o_BTHV, S_BHKV = scan(q_BTXK, k_BTXK, v_BTHV, beta_BTH, log_decay_BTHK, initial, context.starts_BT)
        if state is not None:
            state["scan"].copy_(S_BHKV.detach())
        return self.out(self.norm(o_BTHV.flatten(-2), self.gate(u_BTD)).to(u_BTD.dtype))


def from_input(config: KimiDeltaConfig, site: Site, d_out: int) -> nn.Module:
    """Return the module that computes the decays or the gate."""
    if config.low_rank:
        return LowRank(site.d_model, config.value_dim, d_out)
    return Projection(site.d_model, d_out, bias=False, role="input")


class LowRank(nn.Module):
    """Two projections: the first computes a narrow vector, the second reads it."""

    def __init__(self, d_in: int, rank: int, d_out: int) -> None:
        super().__init__()
        self.down = Projection(d_in, rank, bias=False, role="narrow")
        self.up = Projection(rank, d_out, bias=False, role="input")

    def forward(self, x: Tensor) -> Tensor:
        """Apply both projections: [..., d_in] -> [..., d_out]."""
        return self.up(self.down(x))


def scan(
    q_BTXK: Tensor,
    k_BTXK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTHK: Tensor,
    S_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Process all tokens chunk by chunk, from a state (None means zeros). Return their outputs and the new state."""
    groups = (q_BTXK.shape[2], -1)
    q_bcgqk, k_bcgqk = (chunked(y).movedim(2, 3) for y in (q_BTXK, k_BTXK))
    log_bcgrqk = chunked(log_decay_BTHK).unflatten(3, groups).movedim(2, 4)
    met_bcgrqs, weights_bcgrqs = decayed_products(q_bcgqk[:, :, :, None], k_bcgqk[:, :, :, None], log_bcgrqk)
    since_bcgrqk, until_bcgrsk = sum_up_to(log_bcgrqk, -2).exp(), sum_of_later(log_bcgrqk).exp()
    if starts_BT is not None:
        starts_bc11q = starts_in_chunks(starts_BT)[:, :, None]
        hidden_bc11qs = starts_bc11q[..., None] > torch.arange(met_bcgrqs.shape[-1], device=starts_BT.device)
        met_bcgrqs, weights_bcgrqs = (x.masked_fill(hidden_bc11qs, 0) for x in (met_bcgrqs, weights_bcgrqs))
        since_bcgrqk = since_bcgrqk.masked_fill(starts_bc11q[..., None] >= 0, 0)
        until_bcgrsk = until_bcgrsk.masked_fill(hidden_bc11qs[..., -1, :, None], 0)
    compared = Comparison(met_bcgrqs, weights_bcgrqs, since_bcgrqk, until_bcgrsk)
    return chunk_by_chunk(compared, q_bcgqk, k_bcgqk, v_BTHV, beta_BTH, S_BHKV)


def decayed_products(q_qk: Tensor, k_qk: Tensor, log_decay_qk: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of each key with the keys of the same and of earlier tokens, [..., q, s], and the products of
    each query with them. Entries with s > q are 0. All tensors may have further axes at the front.

    Each component of a product is scaled by its decay from s to q. The tokens form blocks, of one token at first. Two
    neighboring blocks are a pair, which is the next block. In a pair, the decay from s to q is the decay from s to the
    end of the first block, times the decay from there to q. Both factors are at most 1, so that nothing overflows,
    however strong the decays are.
    """
    size = k_qk.shape[-2]
    more = padded_chunk(size) - size
    # If the padded tensors were not contiguous, every product would copy their rows.
    q_qk, k_qk, log_decay_qk = (F.pad(x, (0, 0, 0, more)).contiguous() for x in (q_qk, k_qk, log_decay_qk))
    shape = (*log_decay_qk.shape[:-1], 1, 1)
    met_pqs, weights_pqs = ((x * k_qk).sum(-1)[..., None, None].expand(shape) for x in (k_qk, q_qk))
    while met_pqs.shape[-3] > 1:
        n = met_pqs.shape[-1]
        first_psk, second_pqk = log_decay_qk.unflatten(-2, (-1, 2, n)).unbind(-3)
        decays_pqk = sum_up_to(second_pqk, -2).exp()
        k_psk, k_pqk = k_qk.unflatten(-2, (-1, 2, n)).unbind(-3)
        q_pqk = q_qk.unflatten(-2, (-1, 2, n))[..., 1, :, :]
        until_psk = sum_of_later(first_psk).exp()
        k_psk = k_psk * until_psk
        met_pqs = paired(met_pqs, (k_pqk * decays_pqk) @ k_psk.mT)
        weights_pqs = paired(weights_pqs, (q_pqk * decays_pqk) @ k_psk.mT)
    return met_pqs[..., 0, :size, :size], weights_pqs[..., 0, :size, :size]


def paired(blocks_pqs: Tensor, across_pqs: Tensor) -> Tensor:
    """Join pairs of blocks. `across` holds the entries in the rows of the second block and the columns of the first."""
    first_pqs, second_pqs = blocks_pqs.unflatten(-3, (-1, 2)).unbind(-3)
    above_pqs = F.pad(first_pqs, (0, first_pqs.shape[-1]))
    return torch.cat((above_pqs, torch.cat((across_pqs, second_pqs), -1)), -2)


def sum_of_later(x_qk: Tensor) -> Tensor:
    """Return, for each token, the sum of x over all later tokens."""
    later_qk = F.pad(x_qk[..., 1:, :], (0, 0, 0, 1)).flip(-2)
    return sum_up_to(later_qk, -2).flip(-2)
