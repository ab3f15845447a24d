"""Attention measures for probes, recomputed from the queries and keys of a forward pass.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C head_dim. A tensor without B belongs to one
sequence, or to one window of packed documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archlab.model.arithmetic import without_autocast
from archlab.model.kernels import Attend
from archlab.model.masks import Mask, Visible, dense

QUERIES_AT_ONCE = 256
"""Number of queries whose scores are in memory at a time."""
LONGEST = 2048
"""Maximum number of tokens of a window that are measured. The mask of a longer window might not fit into memory."""


class Weights(NamedTuple):
    """Attention scores and weights of some queries."""

    scores_HQS: Tensor
    """Input of the softmax: scaled, biased and capped. -inf if the query does not see the key."""
    weights_HQS: Tensor
    """Attention weights on the values. With a learned sink, a row sums to less than 1."""
    on_sink_HQ: Tensor
    """Attention weight of the learned sink; 0 without a sink."""


@dataclass(frozen=True)
class Reached:
    """Inputs of an attention kernel (`Attend`) for one sequence of the batch, in float32."""

    q_HQC: Tensor
    k_KSC: Tensor
    seen_QS: Tensor | None
    """Attention mask, true if the query sees the key. None means the plain causal mask."""
    starts_Q: Tensor
    """Index of the first token of each query's sequence or document."""
    bias_HQS: Tensor | None
    sinks_H: Tensor | None
    scale: float
    softcap: float | None

    @classmethod
    def of(
        cls,
        attend: Attend,
        q_BHQC: Tensor,
        k_BKSC: Tensor,
        mask_BQS: Mask | None,
        bias_BHQS: Tensor | None,
        sinks_H: Tensor | None,
    ) -> "Reached":
        """Return the inputs for the first LONGEST tokens of the first sequence, detached from the autograd graph."""
        n = min(q_BHQC.shape[2], LONGEST)
        mask_BQS = _of_first(n, mask_BQS)
        seen_BQS = dense(mask_BQS)
        starts_BQ = mask_BQS.starts_BQ if isinstance(mask_BQS, Visible) else None
        if starts_BQ is None:
            starts_BQ = torch.zeros(1, n, dtype=torch.int64, device=q_BHQC.device)
        return cls(
            q_BHQC[0, :, :n].detach().float(),
            k_BKSC[0, :, :n].detach().float(),
            None if seen_BQS is None else seen_BQS[0],
            starts_BQ[0],
            None if bias_BHQS is None else bias_BHQS[0, :, :n, :n].detach().float(),
            None if sinks_H is None else sinks_H.detach().float(),
            attend.scale,
            attend.softcap,
        )

    def pieces(self) -> Iterator[slice]:
        n_queries = self.q_HQC.shape[1]
        return (slice(i, min(i + QUERIES_AT_ONCE, n_queries)) for i in range(0, n_queries, QUERIES_AT_ONCE))

    def seen(self, queries: slice) -> Tensor:
        """Return the attention mask of these queries, [Q, S], true if the query sees the key."""
        if self.seen_QS is not None:
            return self.seen_QS[queries]
        index = torch.arange(self.k_KSC.shape[1], device=self.k_KSC.device)
        return index[queries, None] >= index

    def weights(self, queries: slice) -> Weights:
        """Return the attention weights of these queries: softmax(mask(cap(scale q k^T + bias))).

        The softmax includes a learned sink, if there is one.
        """
        group = self.q_HQC.shape[0] // self.k_KSC.shape[0]
        k_HSC = self.k_KSC.repeat_interleave(group, dim=0)
        with without_autocast(k_HSC):
            scores_HQS = self.q_HQC[:, queries] @ k_HSC.transpose(-1, -2) * self.scale
        if self.bias_HQS is not None:
            scores_HQS = scores_HQS + self.bias_HQS[:, queries]
        if self.softcap is not None:
            scores_HQS = self.softcap * torch.tanh(scores_HQS / self.softcap)
        scores_HQS = scores_HQS.masked_fill(~self.seen(queries), float("-inf"))
        log_z_HQ = scores_HQS.logsumexp(-1)
        if self.sinks_H is None:
            return Weights(scores_HQS, (scores_HQS - log_z_HQ[..., None]).exp(), torch.zeros_like(log_z_HQ))
        sinks_HQ = self.sinks_H[:, None].expand_as(log_z_HQ)
        log_z_HQ = torch.logaddexp(log_z_HQ, sinks_HQ)
        return Weights(scores_HQS, (scores_HQS - log_z_HQ[..., None]).exp(), (sinks_HQ - log_z_HQ).exp())


def _of_first(n: int, mask_BQS: Mask | None) -> Mask | None:
    if not isinstance(mask_BQS, Visible) or mask_BQS.query_BQ.shape[1] <= n:
        return mask_BQS
    starts_BQ = None if mask_BQS.starts_BQ is None else mask_BQS.starts_BQ[:, :n]
    return replace(mask_BQS, query_BQ=mask_BQS.query_BQ[:, :n], key_BS=mask_BQS.key_BS[:, :n], starts_BQ=starts_BQ)


def measure_attention(reached: Reached) -> dict[str, Tensor]:
    """Return attention measures over the queries of a window.

    The measures are the largest score, the mean entropy, the relative entropy, and the mean weights on the first token
    and on a learned sink. Means are taken over heads and queries. If a query sees only one key and there is no sink,
    the weight is always 1. Such a query counts only for the largest score.

    The entropy, in nats, covers all visible keys and a learned sink. The relative entropy is the entropy divided by
    ln(number of visible keys and sinks), the entropy of equal weights. The first token is that of the query's sequence
    or document. Its weight is 0 if a sliding window hides it (Xiao 2023).
    """
    totals = torch.zeros(4, device=reached.q_HQC.device, dtype=torch.float64)
    largest, n_queries = torch.tensor(-torch.inf, device=totals.device), 0
    has_sink = reached.sinks_H is not None
    for queries in reached.pieces():
        weights = reached.weights(queries)
        n_weighed_Q = reached.seen(queries).sum(-1) + has_sink
        chooses_Q = n_weighed_Q > 1
        entropy_HQ = torch.special.entr(weights.weights_HQS).sum(-1) + torch.special.entr(weights.on_sink_HQ)
        starts_HQ1 = reached.starts_Q[queries][:, None].expand(entropy_HQ.shape[0], -1, 1)
        means_Q = torch.stack(
            [
                entropy_HQ.mean(0),
                entropy_HQ.mean(0) / n_weighed_Q.clamp(min=2).log(),
                weights.weights_HQS.gather(-1, starts_HQ1)[..., 0].mean(0),
                weights.on_sink_HQ.mean(0),
            ]
        )
        totals += means_Q[:, chooses_Q].double().sum(-1)
        n_queries += int(chooses_Q.sum())
        largest = torch.maximum(largest, weights.scores_HQS.amax())
    entropy, share, first, sink = (totals / n_queries).unbind()  # NaN if no query has a choice
    measures = {"largest_score": largest, "entropy": entropy, "entropy_share": share, "first_token": first}
    return measures | ({"learned_sink": sink} if has_sink else {})


class WatchedAttend:
    """Replacement for an `Attend` that returns the same output and records attention measures."""

    def __init__(self, attend: Attend, measures: dict[str, Tensor]) -> None:
        self.attend, self.measures = attend, measures

    def __call__(
        self,
        q_BHQC: Tensor,
        k_BKSC: Tensor,
        v_BKSV: Tensor,
        mask_BQS: Mask | None,
        bias_BHQS: Tensor | None,
        *,
        sinks_H: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Return the attention output, [B, H, Q, V]."""
        with torch.no_grad():
            reached = Reached.of(self.attend, q_BHQC, k_BKSC, mask_BQS, bias_BHQS, sinks_H)
            self.measures.update(measure_attention(reached))
        return self.attend(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, sinks_H=sinks_H, **others)
