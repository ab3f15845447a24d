"""Batch norm as the norm of all blocks, with statistics over all tokens of a batch.

Batch norm (Ioffe 2015) subtracts the mean of each feature and divides by its standard deviation, both over all tokens
of the batch. The batch contains not only a token and its past, but also later tokens of the same text and other texts.
In training, a token therefore gets information about its future. At inference, running averages replace the statistics
of the batch. The weights were not trained with these averages.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlab


class BatchNorm(archlab.Norm):
    """Batch norm: (x - mean) / sqrt(var + eps) * w + b, with the statistics of each feature over tokens."""

    kind: Literal["batch"] = "batch"
    display_name: ClassVar[str] = "BatchNorm"
    flops_per_number: ClassVar[int] = 7
    eps: float = 1e-5
    """Small number added to the variance."""
    momentum: float = 0.1
    """Weight of the newest batch in the running averages."""
    evaluated_with: Literal["averages", "batch"] = "averages"
    """Statistics used outside of training: the running averages, or those of the evaluated batch. With the batch, a
    token gets information about its future also in evaluation, so the loss is not that of a language model."""

    def n_parameters(self, width: int) -> int:
        """Return the number of weights and biases."""
        return 2 * width


@archlab.implements(BatchNorm)
class BatchNormModule(nn.Module):
    """Batch norm of a tensor of shape [..., width]."""

    mean: Tensor
    variance: Tensor

    def __init__(self, config: BatchNorm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.weight, self.bias = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.constants = {"weight": 1.0, "bias": 0.0}
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each feature over all tokens: [..., width] -> [..., width]."""
        rows = x.reshape(-1, x.shape[-1]).float()
        if not self.training and self.config.evaluated_with == "batch":
            normed = F.batch_norm(rows, None, None, self.weight, self.bias, True, 0.0, self.config.eps)
        else:
            normed = F.batch_norm(
                rows, self.mean, self.variance, self.weight, self.bias, self.training,
                self.config.momentum, self.config.eps,
            )  # fmt: skip
        return normed.view_as(x).to(x.dtype)
