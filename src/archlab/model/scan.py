"""What scans share: a text is cut into chunks. Within a chunk all tokens are mixed at once by matrix products, and a
state is handed from chunk to chunk. Between two tokens it decays by the product of the decays of all tokens after the
first, up to and with the second.

Letters of the axes: b batch, c chunk, q a token of a chunk, s an earlier one of the same chunk, h head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.recurrent import chunking


def chunked(x_bt: Tensor) -> Tensor:
    """[b, t, ...] -> [b, c, q, ...]; the last chunk is filled up with 0."""
    T = x_bt.shape[1]
    n, size = chunking(T)
    return F.pad(x_bt, (0, 0) * (x_bt.ndim - 2) + (0, n * size - T)).unflatten(1, (n, size))


def joined(x_bcq: Tensor, n_tokens: int) -> Tensor:
    """[b, c, q, ...] -> [b, t, ...], the inverse of `chunked`."""
    return x_bcq.flatten(1, 2)[:, :n_tokens]


def decays(log_decay_bcqh: Tensor, starts_bt: Tensor | None) -> tuple[Tensor, Tensor]:
    """How much of s is left at q, [b, c, h, q, s], and how much of the state before the chunk, [b, c, h, q].

    Both are 0 where a document starts in between; s after q counts as 0, too. `log_decay` is <= 0, of each token.
    """
    log_bchq = log_decay_bcqh.transpose(2, 3)
    n, size = log_decay_bcqh.shape[1:3]
    causal_qs = torch.ones(size, size, dtype=torch.bool, device=log_decay_bcqh.device).tril()
    # Sums over the tokens between the two, not differences of sums from the chunk's start, which would be far larger.
    between_bchqs = log_bchq[..., None].expand(*log_bchq.shape, size).masked_fill(~causal_qs.tril(-1), 0).cumsum(-2)
    since_bchq = log_bchq.cumsum(-1)
    seen = causal_qs
    if starts_bt is not None:
        index_s = torch.arange(size, device=starts_bt.device)
        first_c1 = size * torch.arange(n, device=starts_bt.device)[:, None]
        starts_bc1q = (chunked(starts_bt) - first_c1)[:, :, None]
        seen = causal_qs & (starts_bc1q[..., None] <= index_s)
        since_bchq = since_bchq.masked_fill(starts_bc1q >= 0, -torch.inf)
    # Hidden before exp, so that what is hidden is 0 and its gradient, too.
    return between_bchqs.masked_fill(~seen, -torch.inf).exp(), since_bchq.exp()


def initial_decay(n_heads: int, least: float, most: float) -> dict[str, Tensor]:
    """A from `least` to `most` and steps dt from 0.001 to 0.1, as A_log = ln A and as the bias before dt's softplus.

    Published code draws A evenly and dt evenly in its logarithm. Here they stand at even distances, dt in an order that
    has nothing to do with A's, so that they depend on no seed.
    """
    heads = torch.arange(n_heads, dtype=torch.float64)
    A = least + (most - least) * (heads + 0.5) / n_heads
    dt = 0.001 * 100 ** ((heads * (5**0.5 - 1) / 2 + 0.5) % 1)
    return {"A_log": A.log(), "dt_bias": dt.expm1().log()}
