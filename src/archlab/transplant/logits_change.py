"""Change of the logits by transformations of trained weights, before any training."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

COMPARED = 128
"""Largest number of tokens whose logits are compared."""


@dataclass(frozen=True)
class LogitsChange:
    """Difference between the logits of a trained model and those of the changed one."""

    kl: float
    """Kullback-Leibler divergence from the distribution of the trained model to the new one, in nats per token."""
    largest: float
    """Largest absolute change of a logit, divided by the largest absolute logit of the trained model."""
    tokens: str
    """Tokens that were compared, such as `128 held-out tokens`."""

    def __str__(self) -> str:
        return (
            f"before training, the logits of {self.tokens} differ from the trained ones by a KL divergence of "
            f"{self.kl:.3g} nats per token; the largest difference is {self.largest:.2g} of the largest logit"
        )


def logits_change(before_NV: Tensor, after_NV: Tensor, kind: str) -> LogitsChange:
    """Compare the logits of N tokens of a kind, such as `random tokens`. If one vocabulary is larger, only the tokens
    that both have are compared."""
    vocab_size = min(before_NV.shape[1], after_NV.shape[1])
    before_NV, after_NV = (x[:, :vocab_size].double() for x in (before_NV, after_NV))
    kl = F.kl_div(after_NV.log_softmax(-1), before_NV.log_softmax(-1), reduction="batchmean", log_target=True)
    largest = (after_NV - before_NV).abs().max() / before_NV.abs().max().clamp(min=1e-30)
    return LogitsChange(float(kl), float(largest), f"{len(before_NV)} {kind}")
