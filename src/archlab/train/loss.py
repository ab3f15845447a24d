"""Cross-entropy, and the objective that is minimised."""

import torch
import torch.nn.functional as F
from torch import Tensor


def objective(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """(what is minimised, the plain cross-entropy), both the mean in nats per token, in at least float32.

    The objective adds z_loss * log^2 Z, Z the softmax denominator (PaLM).
    """
    logits_NV = logits_BTV.flatten(0, 1)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    cross_entropy = F.cross_entropy(logits_NV, targets_BT.flatten())
    if not z_loss:
        return cross_entropy, cross_entropy
    return cross_entropy + z_loss * logits_NV.logsumexp(-1).square().mean(), cross_entropy
