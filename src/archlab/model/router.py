"""Router of a mixture of experts: it chooses the experts of each token.

Shapes: B batch, T tokens, N = B * T, D d_model, E experts, K active experts per token, G groups.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.component import RoleName, Site
from archlab.config.components.moe import MoE
from archlab.config.components.norm import NoNorm
from archlab.model.arithmetic import at_least_float32, scaled, without_autocast
from archlab.model.context import Collected
from archlab.model.norms import make_norm

TINY = 1e-20
"""Small number added to a sum of scores before dividing by it, because the sum of sigmoid scores may be 0.

Any other sum is so much larger that rounding removes the small number.
"""


class Routing(NamedTuple):
    """Routing of N tokens."""

    logits_NE: Tensor
    scores_NE: Tensor
    chosen_NK: Tensor
    """Experts of each token, best first."""
    weights_NK: Tensor
    """Weights of the chosen experts."""


class Router(nn.Module):
    """Module that chooses each token's experts and their weights.

    It computes the logits W x + b, then the scores, and then chooses the experts. All steps use at least float32. A
    norm may precede the matrix W.
    """

    correction: Tensor | None

    def __init__(self, config: MoE, site: Site) -> None:
        super().__init__()
        self.config, self.active = config.router, config.active
        self.norm = make_norm(site.norm if config.router.norm else NoNorm(), site.d_model)
        self.input_scale = site.d_model**-0.5 if config.router.norm else 1.0
        self.weight = nn.Parameter(torch.empty(config.experts, site.d_model))
        self.bias = nn.Parameter(torch.empty(config.experts)) if config.router.bias else None
        self.expert_scale = nn.Parameter(torch.empty(config.experts)) if config.router.expert_scale else None
        self.register_buffer("correction", torch.zeros(config.experts) if config.router.correction else None)
        self.roles: dict[str, RoleName] = {"weight": "narrow"}
        self.constants = {"bias": 0.0, "expert_scale": 1.0}

    def forward(self, x_ND: Tensor) -> Routing:
        """Choose the experts of each token and their weights: [N, D] -> [N, K]."""
        with without_autocast(x_ND):
            bias = None if self.bias is None else at_least_float32(self.bias)
            read_ND = scaled(at_least_float32(self.norm(x_ND)), self.input_scale)
            logits_NE = F.linear(read_ND, at_least_float32(self.weight), bias)
        scores_NE = logits_NE.softmax(-1) if self.config.score == "softmax" else logits_NE.sigmoid()
        tolerance = self.config.sparsemixer
        if tolerance is None:
            chosen_NK = self.choose(scores_NE.detach())
            weights_NK = scores_NE.gather(-1, chosen_NK)
        else:  # softmax scores of very different logits would tie at 0
            chosen_NK = self.choose(logits_NE.detach())
            weights_NK = sparsemixer_weights(logits_NE, chosen_NK, tolerance)
        if self.config.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + TINY)
        if self.expert_scale is not None:
            weights_NK = weights_NK * at_least_float32(self.expert_scale)[chosen_NK]
        return Routing(logits_NE, scores_NE, chosen_NK, weights_NK * self.config.factor)

    def choose(self, scores_NE: Tensor) -> Tensor:
        """Choose experts by score plus per-expert bias, only from the allowed groups: [N, E] -> [N, K], best first."""
        corrected_NE = scores_NE if self.correction is None else scores_NE + self.correction
        return self._allowed(corrected_NE).topk(self.active, dim=-1).indices

    def _allowed(self, scores_NE: Tensor) -> Tensor:
        groups = self.config.groups
        if groups is None:
            return scores_NE
        scores_NGE = scores_NE.unflatten(-1, (groups.n, -1))
        best = 1 if groups.by == "max" else 2
        group_NG = scores_NGE.topk(best, dim=-1).values.sum(-1)
        kept_NG = torch.zeros_like(group_NG, dtype=torch.bool).scatter(-1, group_NG.topk(groups.kept).indices, True)
        return scores_NGE.masked_fill(~kept_NG[..., None], float("-inf")).flatten(-2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the module, but keep the precision of the per-expert bias: bfloat16 would change the routing."""
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in kept.items():
            now = getattr(self, name)
            if now.itemsize < buffer.itemsize:
                setattr(self, name, buffer.to(now.device))
        return self

    @torch.no_grad()
    def correct(self, chosen_E: Tensor) -> None:
        """Raise the bias of experts with less than the mean load, and lower the bias of experts with more.

        Training calls this method after each update.
        """
        if self.correction is not None and self.config.correction is not None:
            self.correction += self.config.correction.rate * (chosen_E.mean() - chosen_E).sign()


def sparsemixer_weights(logits_NE: Tensor, chosen_NK: Tensor, tolerance: float) -> Tensor:
    """Return the weights of SparseMixer for the chosen experts: [N, E], [N, K] -> [N, K]."""
    weights, untaken_NE, fixed_NE = list[Tensor](), logits_NE, logits_NE.detach()
    for chosen_N1 in chosen_NK.split(1, dim=-1):
        best_N1 = fixed_NE.gather(-1, chosen_N1)
        size_NE = torch.maximum(fixed_NE.abs(), best_N1)
        is_low_NE = (best_N1 - fixed_NE) / size_NE > 2 * tolerance
        shares_NE = untaken_NE.masked_fill(is_low_NE, float("-inf")).softmax(-1)
        weights.append(shares_NE.gather(-1, chosen_N1))
        untaken_NE = untaken_NE.scatter(-1, chosen_N1, float("-inf"))
    return torch.cat(weights, dim=-1)


class Load(NamedTuple):
    """Statistics of one router in one forward pass.

    All fields are sums over the tokens, not counting padding. The fields of several micro-batches can therefore be
    added.
    """

    chosen_E: Tensor
    """Number of tokens for which each expert was chosen."""
    scores_E: Tensor
    """Each expert's score, summed over the tokens. The scores of a token are first scaled so that they add up to 1."""
    log_z_squared: Tensor
    """(log Z)^2, summed over the tokens. Z is the denominator of the softmax over the logits."""
    tokens: Tensor
    """Number of tokens without padding."""


def load_of(routing: Routing, is_real_BT: Tensor | None) -> Load:
    """Return the statistics of a router over all tokens except padding."""
    shares_NE = routing.scores_NE / (routing.scores_NE.sum(-1, keepdim=True) + TINY)
    chosen_NE = torch.zeros_like(shares_NE).scatter(-1, routing.chosen_NK, 1.0)
    squares_N = routing.logits_NE.logsumexp(-1).square()
    ones_N = torch.ones_like(squares_N)
    is_real_N = ones_N if is_real_BT is None else is_real_BT.flatten().to(ones_N.dtype)
    # Sums instead of matrix products, which autocast would round.
    chosen_E, scores_E = ((is_real_N[:, None] * x).sum(0) for x in (chosen_NE, shares_NE))
    return Load(chosen_E, scores_E, (is_real_N * squares_N).sum(), is_real_N.sum())


def collect(load: Load, collected: Collected) -> None:
    for name, value in load._asdict().items():
        collected[f"router.{name}"].append(value)


def collected_loads(collected: Collected) -> list[Load]:
    """Return the statistics of all routers of a model in one forward pass, in the order of the layers."""
    return [Load(*values) for values in zip(*(collected[f"router.{name}"] for name in Load._fields), strict=True)]
