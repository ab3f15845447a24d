"""Attention measures for probes, recomputed from the queries and keys of a forward pass.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C head_dim. A tensor without B belongs to one
sequence, or to one window of packed documents.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archlab.model.arithmetic import without_autocast
from archlab.model.kernels import Attend
from archlab.model.masks import Mask, Visible

QUERIES_AT_ONCE = 256
"""Number of queries whose scores are in memory at a time."""
LONGEST = 2048
"""Maximum number of queries of a window that are measured. The mask of a longer window might not fit into memory."""


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
        *,
        row: int = 0,
        length: int | None = None,
    ) -> "Reached":
        """Return the inputs for the first LONGEST queries of one sequence, detached from the autograd graph.

        `length` is the number of queries before padding. None: no padding.
        """
        n = min(q_BHQC.shape[2] if length is None else length, LONGEST)
        n_keys = n if _is_causal(mask_BQS) else k_BKSC.shape[2]
        starts_BQ = mask_BQS.starts_BQ if isinstance(mask_BQS, Visible) else None
        starts_Q = torch.zeros(n, dtype=torch.int64, device=q_BHQC.device) if starts_BQ is None else starts_BQ[row, :n]
        return cls(
            q_BHQC[row, :, :n].detach().float(),
            k_BKSC[row, :, :n_keys].detach().float(),
            None if mask_BQS is None else _seen(mask_BQS, row, n, n_keys),
            starts_Q,
            None if bias_BHQS is None else _at(bias_BHQS, row)[0, :, :n, :n_keys].detach().float(),
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


def _is_causal(mask_BQS: Mask | None) -> bool:
    return mask_BQS is None or (isinstance(mask_BQS, Visible) and mask_BQS.rule.visibility == "causal")


def _at(x: Tensor, row: int) -> Tensor:
    """Return one sequence of a batch. A tensor with one sequence is the same for all sequences."""
    return x if len(x) == 1 else x[row : row + 1]


def _seen(mask_BQS: Mask, row: int, n_queries: int, n_keys: int) -> Tensor:
    """Return the mask, [Q, S], of the first queries and keys of one sequence."""
    if not isinstance(mask_BQS, Visible):
        return _at(mask_BQS.dense, row)[0, :n_queries, :n_keys]
    starts_BQ, key_starts_BS = mask_BQS.starts_BQ, mask_BQS.key_starts_BS
    key_starts_BS = starts_BQ if key_starts_BS is None else key_starts_BS
    first = replace(
        mask_BQS,
        query_BQ=_at(mask_BQS.query_BQ, row)[:, :n_queries],
        key_BS=_at(mask_BQS.key_BS, row)[:, :n_keys],
        prefix_B11=None if mask_BQS.prefix_B11 is None else _at(mask_BQS.prefix_B11, row),
        starts_BQ=None if starts_BQ is None else _at(starts_BQ, row)[:, :n_queries],
        key_starts_BS=None if key_starts_BS is None else _at(key_starts_BS, row)[:, :n_keys],
    )
    return first.dense[0]


def measure_attention(windows: Sequence[Reached]) -> dict[str, Tensor]:
    """Return attention measures over the queries of one or more windows.

    The measures are the largest score, the mean entropy, the relative entropy, and the mean weights on the first token
    and on a learned sink. Means are taken over heads and queries. If a query sees only one key and there is no sink,
    the weight is always 1. Such a query counts only for the largest score.

    The entropy, in nats, covers all visible keys and a learned sink. The relative entropy is the entropy divided by
    ln(number of visible keys and sinks), the entropy of equal weights. The first token is that of the query's sequence
    or document. Its weight is 0 if a sliding window hides it (Xiao 2023).
    """
    totals = torch.zeros(4, device=windows[0].q_HQC.device, dtype=torch.float64)
    largest, n_queries = torch.tensor(-torch.inf, device=totals.device), 0
    has_sink = windows[0].sinks_H is not None
    for reached, queries in ((window, queries) for window in windows for queries in window.pieces()):
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
    """Replacement for an `Attend` that returns the same output and passes the inputs of every call to `record`.

    `record(attend, q, k, mask, bias, sinks)` gets the arguments of `Reached.of`.
    """

    def __init__(self, attend: Attend, record: Callable[..., None]) -> None:
        self.attend, self.record = attend, record

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
            self.record(self.attend, q_BHQC, k_BKSC, mask_BQS, bias_BHQS, sinks_H)
        return self.attend(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, sinks_H=sinks_H, **others)
