"""Gated delta rule (Yang 2024): the state is a memory that maps keys to values and can correct its entries.

Shapes: B batch, T tokens, D d_model, K key_dim, V value_dim, X key heads, H value heads, Y decays of a value head.
Lowercase axes are as in recurrent.py; in addition, g key head, r value head of a key head, k key_dim, v value_dim, y
decay of a value head. There is one decay for the whole state of a value head here, and one for each row of it in
kimi_delta.py.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.gated_delta import GatedDelta as GatedDeltaConfig
from archlab.config.components.recurrent import GatedRMSNorm
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv, GatedNorm, chunked, decays, initial_decay, joined
from archlab.model.state import State, is_step


@implements(GatedDeltaConfig)
class GatedDelta(nn.Module):
    """Gated delta rule: S <- a S; S <- S + k (beta (v - S^T k))^T; o = S^T q.

    Queries, keys and values pass through a short convolution first.
    """

    timed_as = "scans"

    def __init__(self, config: GatedDeltaConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        self.q = Projection(site.d_model, config.key_width, bias=False, role="input")
        self.k = Projection(site.d_model, config.key_width, bias=False, role="input")
        self.v = Projection(site.d_model, config.value_width, bias=False, role="input")
        self.gate = Projection(site.d_model, config.value_width, bias=False, role="input")
        self.beta = Projection(site.d_model, config.n_value_heads, bias=False, role="input")
        self.decay = Projection(site.d_model, config.n_value_heads, bias=False, role="input")
        self.conv = CausalConv(config.conv_widths, config.taps, bias=False, activation=make_activation("silu"))
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(config.n_value_heads)) for _ in range(2))
        self.constants = initial_decay(config.n_value_heads, 0, 16)
        self.norm = GatedNorm(GatedRMSNorm(eps=config.norm_eps, gate="after"), config.value_dim)
        self.out = Projection(config.value_width, site.d_model, bias=False, role="output")

    def forward(self, u_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixer: [B, T, D] -> [B, T, D]."""
        config = self.config
        qkv = self.conv(torch.cat((self.q(u_BTD), self.k(u_BTD), self.v(u_BTD)), -1), context, state)
        q_BTXK, k_BTXK, v_BTHV = in_heads(config, qkv)
        beta_BTH = torch.sigmoid(at_least_float32(self.beta(u_BTD))) * (2 if config.negative_eigenvalues else 1)
        dt_BTH = F.softplus(at_least_float32(self.decay(u_BTD)) + self.dt_bias, threshold=40)
        log_decay_BTH = -dt_BTH * at_least_float32(self.A_log).exp()
        with without_autocast(u_BTD):
            if state is not None and is_step(u_BTD.shape[1]):
                o_BTHV, S_BHKV = step(q_BTXK, k_BTXK, v_BTHV, beta_BTH, log_decay_BTH[..., None], state["scan"])
            else:
                initial = None if state is None else state["scan"].clone()  # autograd saves it; it is overwritten below
                o_BTHV, S_BHKV = scan(q_BTXK, k_BTXK, v_BTHV, beta_BTH, log_decay_BTH, initial, context.starts_BT)
        if state is not None:
            state["scan"].copy_(S_BHKV.detach())
        return self.out(self.norm(o_BTHV.flatten(-2), self.gate(u_BTD)).to(u_BTD.dtype))


def in_heads(config: GatedDeltaConfig, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, keys and values of each head, in float32 or wider.

    Keys have length 1, and queries have length 1 / sqrt(key_dim).
    """
    q, k, v = at_least_float32(qkv).split((config.key_width, config.key_width, config.value_width), -1)
    q_BTXK, k_BTXK = (_unit(y.unflatten(-1, (-1, config.key_dim))) for y in (q, k))
    return q_BTXK / math.sqrt(config.key_dim), k_BTXK, v.unflatten(-1, (-1, config.value_dim))


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def step(
    q_BTXK: Tensor, k_BTXK: Tensor, v_BTHV: Tensor, beta_BTH: Tensor, log_decay_BTHY: Tensor, S_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    """Process one token, T = 1. Return its output and the new state."""
    groups = (q_BTXK.shape[2], -1)
    q_bg1k1, k_bg1k1 = q_BTXK[:, 0, :, None, :, None], k_BTXK[:, 0, :, None, :, None]
    v_bgrv, beta_bgr = v_BTHV[:, 0].unflatten(1, groups), beta_BTH[:, 0].unflatten(1, groups)
    S_bgrkv = (log_decay_BTHY[:, 0].exp()[..., None] * S_BHKV).unflatten(1, groups)
    change_bgrv = beta_bgr[..., None] * (v_bgrv - (S_bgrkv * k_bg1k1).sum(-2))
    S_bgrkv = S_bgrkv + k_bg1k1 * change_bgrv[..., None, :]
    o_bgrv = (S_bgrkv * q_bg1k1).sum(-2)
    return o_bgrv.flatten(1, 2)[:, None], S_bgrkv.flatten(1, 2)


def scan(
    q_BTXK: Tensor,
    k_BTXK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor,
    S_BHKV: Tensor | None = None,
    starts_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Process all tokens chunk by chunk, from a state (None means zeros). Return their outputs and the new state."""
    groups = (q_BTXK.shape[2], -1)
    q_bcgqk, k_bcgqk = (chunked(y).movedim(2, 3) for y in (q_BTXK, k_BTXK))
    between_bcgrqs, since_bcgrq = (y.unflatten(2, groups) for y in decays(chunked(log_decay_BTH), starts_BT)[:2])
    compared = Comparison(
        (k_bcgqk @ k_bcgqk.mT)[:, :, :, None] * between_bcgrqs,
        (q_bcgqk @ k_bcgqk.mT)[:, :, :, None] * between_bcgrqs,
        since_bcgrq[..., None],
        between_bcgrqs[..., -1, :, None],
    )
    return chunk_by_chunk(compared, q_bcgqk, k_bcgqk, v_BTHV, beta_BTH, S_BHKV)


@dataclass(frozen=True)
class Comparison:
    """Decays between the tokens of a chunk, and products of their queries and keys, which include the decays."""

    met_bcgrqs: Tensor
    """Products of the key of token q and the keys of earlier tokens s. Entries with s >= q have no effect."""
    weights_bcgrqs: Tensor
    """Products of the query of token q and the keys of tokens s up to q. They are 0 for later tokens."""
    since_bcgrqy: Tensor
    """Decays from the state before the chunk to token q."""
    until_bcgrsy: Tensor
    """Decays from token s to the last token of the chunk."""


def chunk_by_chunk(
    compared: Comparison,
    q_bcgqk: Tensor,
    k_bcgqk: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    S_BHKV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all tokens and the new state.

    Each token adds k c^T to the state, with c = beta (v - (a S)^T k - r). S is the state before the chunk, and a is its
    decay up to the token. r is what the key k reads from the changes that earlier tokens of the chunk have made.
    Because r depends on the c of earlier tokens, the c of a chunk are the solution of a triangular system. The matrix
    of this system does not depend on S, so its inverse gives c = values - keys S for any S.
    """
    T, groups = v_BTHV.shape[1], (q_bcgqk.shape[2], -1)
    v_bcgrqv = chunked(v_BTHV).unflatten(3, groups).movedim(2, 4)
    beta_bcgrq1 = chunked(beta_BTH).unflatten(3, groups).movedim(2, 4)[..., None]
    system_bcgrqs = beta_bcgrq1 * compared.met_bcgrqs  # the solver treats its diagonal as 1
    one_qs = torch.eye(system_bcgrqs.shape[-1], dtype=q_bcgqk.dtype, device=q_bcgqk.device)
    inverse_bcgrqs = torch.linalg.solve_triangular(system_bcgrqs, one_qs, upper=False, unitriangular=True)
    values_bcgrqv = inverse_bcgrqs @ (beta_bcgrq1 * v_bcgrqv)
    k_bcgrqk, q_bcgrqk = k_bcgqk[:, :, :, None], q_bcgqk[:, :, :, None]
    keys_bcgrqk = inverse_bcgrqs @ (beta_bcgrq1 * compared.since_bcgrqy * k_bcgrqk)

    reading_bcgrqk = compared.since_bcgrqy * q_bcgrqk
    writing_bcgrks = (compared.until_bcgrsy * k_bcgrqk).mT
    kept_bcgry1 = compared.since_bcgrqy[..., -1, :, None]
    shape = (*kept_bcgry1.shape[:1], *kept_bcgry1.shape[2:4], *writing_bcgrks.shape[-2:-1], v_BTHV.shape[-1])
    S_bgrkv = v_BTHV.new_zeros(shape) if S_BHKV is None else S_BHKV.unflatten(1, groups)
    read: list[Tensor] = []
    for c in range(values_bcgrqv.shape[1]):
        change_bgrqv = values_bcgrqv[:, c] - keys_bcgrqk[:, c] @ S_bgrkv
        read.append(reading_bcgrqk[:, c] @ S_bgrkv + compared.weights_bcgrqs[:, c] @ change_bgrqv)
        S_bgrkv = kept_bcgry1[:, c] * S_bgrkv + writing_bcgrks[:, c] @ change_bgrqv
    o_bcqhv = torch.stack(read, 1).flatten(2, 3).movedim(3, 2)
    return joined(o_bcqhv, T), S_bgrkv.flatten(1, 2)
