"""Kimi delta attention (Kimi Team 2025): the gated delta rule with one decay for each row of the state.

Axes are as in gated_delta.py; in addition, p pair of neighboring blocks of tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.kimi_delta import KimiDelta as KimiDeltaConfig
from archlab.config.components.kimi_delta import padded_chunk
from archlab.config.components.recurrent import GatedRMSNorm
from archlab.config.core.registry import implements
from archlab.model.arithmetic import at_least_float32
from archlab.model.gated_delta import Comparison, GatedDelta
from archlab.model.projection import Projection
from archlab.model.recurrent import GatedNorm, initial_decay, seen_in_chunks


class LowRank(nn.Module):
    """Two projections: the first computes a narrow vector, the second reads it."""

    def __init__(self, d_in: int, rank: int, d_out: int) -> None:
        super().__init__()
        self.down = Projection(d_in, rank, bias=False, role="narrow")
        self.up = Projection(rank, d_out, bias=False, role="input")

    def forward(self, x: Tensor) -> Tensor:
        """Apply both projections: [..., d_in] -> [..., d_out]."""
        return self.up(self.down(x))


@implements(KimiDeltaConfig)
class KimiDelta(GatedDelta):
    """Gated delta rule S <- diag(a) S; S <- S + k (beta (v - S^T k))^T; o = S^T q, where a is a vector.

    The output gate is a sigmoid.
    """

    def __init__(self, config: KimiDeltaConfig, site: Site) -> None:
        super().__init__(config, site)
        self.lower_bound = config.lower_bound
        self.gate = self._from_input(config, site, config.value_width)
        self.decay = self._from_input(config, site, config.decay_width)
        self.dt_bias = nn.Parameter(torch.empty(config.decay_width))
        A_log = initial_decay(config.n_value_heads, 1, 16)["A_log"]
        self.constants = {**initial_decay(config.decay_width, 1, 16), "A_log": A_log}
        norm = GatedRMSNorm(eps=config.norm_eps, gate="after")
        self.norm = GatedNorm(norm, config.value_dim, activation=torch.sigmoid)

    @staticmethod
    def _from_input(config: KimiDeltaConfig, site: Site, d_out: int) -> nn.Module:
        if config.low_rank:
            return LowRank(site.d_model, config.value_dim, d_out)
        return Projection(site.d_model, d_out, bias=False, role="input")

    def log_decay(self, u_BTD: Tensor) -> Tensor:
        if self.lower_bound is None:
            return super().log_decay(u_BTD)
        rates_H1 = at_least_float32(self.A_log).exp()[:, None]
        return self.lower_bound * torch.sigmoid(rates_H1 * self.step_inputs(u_BTD))

    @staticmethod
    def compare(q_bcgqk: Tensor, k_bcgqk: Tensor, log_decay_bcqgry: Tensor, starts_BT: Tensor | None) -> Comparison:
        """Compare the tokens of each chunk. Each component of a product has its own decay."""
        seen, begins = seen_in_chunks(log_decay_bcqgry, starts_BT)
        log_bcgrqk = log_decay_bcqgry.movedim(2, 4)
        q_bcg1qk, k_bcg1qk = (padded(x)[:, :, :, None] for x in (q_bcgqk, k_bcgqk))
        levels = halves(k_bcg1qk, padded(log_bcgrqk))
        size = log_bcgrqk.shape[-2]
        met_bcgrqs, weights_bcgrqs = (
            decayed_products(x, k_bcg1qk, levels)[..., :size, :size] for x in (k_bcg1qk, q_bcg1qk)
        )
        since_bcgrqk, until_bcgrsk = log_bcgrqk.cumsum(-2).exp(), sum_of_later(log_bcgrqk).exp()
        if begins is not None:
            seen_bc11qs, begins_bc11q = seen[:, :, None], begins[:, :, None]
            met_bcgrqs, weights_bcgrqs = (x.masked_fill(~seen_bc11qs, 0) for x in (met_bcgrqs, weights_bcgrqs))
            since_bcgrqk = since_bcgrqk.masked_fill(begins_bc11q[..., None], 0)
            until_bcgrsk = until_bcgrsk.masked_fill(~seen_bc11qs[..., -1, :, None], 0)
        return Comparison(met_bcgrqs, weights_bcgrqs, since_bcgrqk, until_bcgrsk)


class Level(NamedTuple):
    """Blocks of neighboring tokens in pairs. The pairs of a level are twice as long as those of the level before."""

    decays_pqk: Tensor
    """Decays from the end of the first block of each pair to token q of the second block."""
    keys_psk: Tensor
    """Keys of the first block, scaled by the decays from their token to the end of the block."""


def halves(k_qk: Tensor, log_decay_qk: Tensor) -> list[Level]:
    """Return levels from pairs of two tokens to one pair, the whole chunk. All tensors may have further axes before
    these.

    Any two tokens are in different blocks of the same pair at exactly one level. The decay between them is the product
    of two decays of this level. Both are at most 1, so that no product overflows, however strong the decays are.
    """
    levels: list[Level] = []
    size = 1
    while size < k_qk.shape[-2]:
        first, second = log_decay_qk.unflatten(-2, (-1, 2, size)).unbind(-3)
        keys = k_qk.unflatten(-2, (-1, 2, size))[..., 0, :, :]
        levels.append(Level(second.cumsum(-2).exp(), keys * sum_of_later(first).exp()))
        size *= 2
    return levels


def decayed_products(x_qk: Tensor, k_qk: Tensor, levels: list[Level]) -> Tensor:
    """Return the products of each x and the keys of the same token and of earlier ones, [..., q, s]. Each component of
    a key is scaled by its decay from token s to token q. Entries with s > q are 0."""
    products_pqs = (x_qk * k_qk).sum(-1)[..., None, None]
    for decays_pqk, keys_psk in levels:
        size = keys_psk.shape[-2]
        x_pqk = x_qk.unflatten(-2, (-1, 2, size))[..., 1, :, :]
        across_pqs = (x_pqk * decays_pqk) @ keys_psk.mT
        products_pqs = products_pqs.expand(*across_pqs.shape[:-3], -1, -1, -1)
        first_pqs, second_pqs = products_pqs.unflatten(-3, (-1, 2)).unbind(-3)
        products_pqs = torch.cat((F.pad(first_pqs, (0, size)), torch.cat((across_pqs, second_pqs), -1)), -2)
    return products_pqs[..., 0, :, :]


def padded(x_qk: Tensor) -> Tensor:
    """Pad the tokens of a chunk with 0, so that their number is a power of two."""
    size = x_qk.shape[-2]
    return F.pad(x_qk, (0, 0, 0, padded_chunk(size) - size)).contiguous()  # otherwise, every product copies its rows


def sum_of_later(x_qk: Tensor) -> Tensor:
    """Return, for each token, the sum of x over all later tokens."""
    return F.pad(x_qk[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)
