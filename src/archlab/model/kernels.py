"""The ways to compute attention. Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C head_dim.

Both give the same numbers; a test holds them to it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.model.norms import at_least_float32


def reference(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, mask_QS: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """softmax(scale q k^T) v written out, softmax in at least float32; mask None is plain causal. -> [B, H, Q, C]."""
    group = q_BHQC.shape[1] // k_BKSC.shape[1]
    k_BHSC, v_BHSC = (x.repeat_interleave(group, dim=1) for x in (k_BKSC, v_BKSC))
    scores = q_BHQC @ k_BHSC.transpose(-1, -2) * scale
    if mask_QS is None:
        mask_QS = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill(~mask_QS, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v_BHSC.dtype)
    return F.dropout(weights, dropout) @ v_BHSC


def sdpa(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, mask_QS: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """torch's fused attention, the same contract as `reference`."""
    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    dtype = q_BHQC.dtype
    if q_BHQC.device.type == "cpu":
        # Its bfloat16 backward on CPU is two to three times slower than float32's (benchmarks/attention_cpu.py).
        q_BHQC, k_BKSC, v_BKSC = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSC))
    with torch.autocast(q_BHQC.device.type, enabled=False):
        mixed_BHQC = F.scaled_dot_product_attention(
            q_BHQC, k_BKSC, v_BKSC, mask_QS, dropout, is_causal=mask_QS is None, scale=scale, enable_gqa=grouped
        )
    return mixed_BHQC.to(dtype)


KERNELS = {"reference": reference, "sdpa": sdpa}
