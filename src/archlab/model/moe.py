"""A mixture of experts. Shapes: B batch, T tokens, N = B * T, D d_model, E experts, K active, F d_ff of one expert."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config import moe as schema
from archlab.config.component import Site
from archlab.model.activations import make_activation
from archlab.model.arithmetic import as_autocast, at_least_float32, without_autocast
from archlab.model.context import Context
from archlab.model.grouped import grouped_linear
from archlab.model.init import Projection
from archlab.model.mlp import MLP, gate_times_up
from archlab.model.state import State


TINY = 1e-20
"""Keeps a sum of sigmoids, which may all be 0, from dividing by it; elsewhere it is lost in rounding."""


class Routing(NamedTuple):
    """What a router says of N tokens."""

    logits_NE: Tensor
    scores_NE: Tensor
    chosen_NK: Tensor
    """The experts of each token, the best first."""
    weights_NK: Tensor
    """On what they give."""


class Load(NamedTuple):
    """What one router did in one pass: sums over real tokens, so that layers and micro batches can be put together."""

    chosen_E: Tensor
    """How many times each expert was chosen."""
    score_E: Tensor
    """The tokens' scores, those of one token summing to 1."""
    log_z_squared: Tensor
    """log^2 Z, Z the softmax denominator of the logits."""
    tokens: Tensor


class MoE(nn.Module):
    """sum over the chosen experts e of weight_e * MLP_e(x), and the shared expert's MLP(x)."""

    def __init__(self, config: schema.ResolvedMoE, site: Site) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, site.d_model)
        self.experts = Experts(config, site.d_model)
        shared = config.shared_mlp
        self.shared = None if shared is None else MLP(shared, site)
        is_gated = config.shared is not None and config.shared.gate
        self.shared_gate = Projection(site.d_model, 1, bias=False, role="input") if is_gated else None

    def forward(self, x_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x_ND = x_BTD.flatten(0, 1)
        routing = self.router(x_ND)
        y_BTD = self.experts(x_ND, routing.chosen_NK, routing.weights_NK).view_as(x_BTD)
        if context.collected is not None:
            context.collected.append(load(routing, context.is_real_BT))
        if self.shared is None:
            return y_BTD
        shared_BTD = self.shared(x_BTD, context, state)
        return y_BTD + (shared_BTD if self.shared_gate is None else self.shared_gate(x_BTD).sigmoid() * shared_BTD)


class Router(nn.Module):
    """Logits W x + b, scores, choice and weights; all in at least float32."""

    def __init__(self, config: schema.ResolvedMoE, d_model: int) -> None:
        super().__init__()
        self.config, self.active = config.router, config.active
        self.weight = nn.Parameter(torch.empty(config.experts, d_model))
        self.bias = nn.Parameter(torch.empty(config.experts)) if config.router.bias else None
        self.register_buffer("correction", torch.zeros(config.experts) if config.router.correction else None)
        self.roles, self.constants = {"weight": "input"}, {"bias": 0.0}

    def forward(self, x_ND: Tensor) -> Routing:
        """[N, D] -> who is chosen, and with what weights."""
        with without_autocast(x_ND):
            bias = None if self.bias is None else at_least_float32(self.bias)
            logits_NE = F.linear(at_least_float32(x_ND), at_least_float32(self.weight), bias)
        scores_NE = logits_NE.softmax(-1) if self.config.score == "softmax" else logits_NE.sigmoid()
        chosen_NK = self._allowed(self._corrected(scores_NE.detach())).topk(self.active, dim=-1).indices
        weights_NK = scores_NE.gather(-1, chosen_NK)
        if self.config.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + TINY)
        return Routing(logits_NE, scores_NE, chosen_NK, weights_NK * self.config.factor)

    def _corrected(self, scores_NE: Tensor) -> Tensor:
        return scores_NE if self.correction is None else scores_NE + self.correction

    def _allowed(self, scores_NE: Tensor) -> Tensor:
        """-inf for the experts of groups that are not among the best."""
        groups = self.config.groups
        if groups is None:
            return scores_NE
        scores_NGE = scores_NE.unflatten(-1, (groups.n, -1))
        best = 1 if groups.by == "max" else 2
        group_NG = scores_NGE.topk(best, dim=-1).values.sum(-1)
        kept_NG = torch.zeros_like(group_NG, dtype=torch.bool).scatter(-1, group_NG.topk(groups.kept).indices, True)
        return scores_NGE.masked_fill(~kept_NG[..., None], float("-inf")).flatten(-2)

    @torch.no_grad()
    def correct(self, chosen_E: Tensor) -> None:
        """Raise the correction of experts with less than the mean load, lower that of those with more (Wang 2024)."""
        if self.correction is not None and self.config.correction is not None:
            self.correction += self.config.correction.rate * (chosen_E.mean() - chosen_E).sign()


class Experts(nn.Module):
    """E MLPs in stacked matrices. Rows are put in order of their experts, so that each expert is one product.

    What a token's experts give is gathered and summed in the order of its choice, so the other tokens do not matter, and
    nothing is added in an order that a device chooses.
    """

    def __init__(self, config: schema.ResolvedMoE, d_model: int) -> None:
        super().__init__()
        self.config, E, F, D = config.expert_mlp, config.experts, config.d_ff, d_model
        self.activation = make_activation(config.activation)
        self.up = nn.Parameter(torch.empty(E, F, D))
        self.gate = nn.Parameter(torch.empty(E, F, D)) if config.gated else None
        self.down = nn.Parameter(torch.empty(E, D, F))
        self.up_bias = nn.Parameter(torch.empty(E, F)) if config.bias else None
        self.gate_bias = nn.Parameter(torch.empty(E, F)) if config.bias and config.gated else None
        self.down_bias = nn.Parameter(torch.empty(E, D)) if config.bias else None
        self.roles = {"up": "input", "gate": "input", "down": "output"}
        self.constants = {"up_bias": 0.0, "gate_bias": 0.0, "down_bias": 0.0}

    def forward(self, x_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """[N, D], experts and weights [N, K] -> [N, D]."""
        K = chosen_NK.shape[1]
        expert_R, order_R = chosen_NK.flatten().sort(stable=True)  # R = N * K rows
        ends_E = torch.searchsorted(expert_R, torch.arange(len(self.up), device=x_ND.device), right=True).int()

        def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            y = grouped_linear(*as_autocast(x, weight), ends_E)
            return y if bias is None else y + bias[expert_R].to(y.dtype)

        x_RD = x_ND.index_select(0, order_R // K)
        up_RF = project(x_RD, self.up, self.up_bias)
        if self.gate is None:
            inner_RF = self.activation(up_RF)
        else:
            inner_RF = gate_times_up(self.config, self.activation, project(x_RD, self.gate, self.gate_bias), up_RF)
        y_RD = project(inner_RF, self.down, self.down_bias)
        y_NKD = y_RD.index_select(0, order_R.argsort()).unflatten(0, (-1, K))
        return (y_NKD * weights_NK[..., None]).sum(1).to(y_RD.dtype)


def load(routing: Routing, is_real_BT: Tensor | None) -> Load:
    """What the router did, over real tokens."""
    shares_NE = routing.scores_NE / (routing.scores_NE.sum(-1, keepdim=True) + TINY)
    chosen_NE = torch.zeros_like(shares_NE).scatter(-1, routing.chosen_NK, 1.0)
    squares_N = routing.logits_NE.logsumexp(-1).square()
    ones_N = torch.ones_like(squares_N)
    is_real_N1 = ones_N[:, None] if is_real_BT is None else is_real_BT.flatten()[:, None].to(ones_N.dtype)
    return Load(*((is_real_N1 * x).sum(0) for x in (chosen_NE, shares_NE, squares_N[:, None], ones_N[:, None])))
