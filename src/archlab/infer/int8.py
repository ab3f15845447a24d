"""Weights as 8-bit whole numbers with a scale per row: half of bfloat16's bytes to read for every decoded token.

They are read as they are by a model in bfloat16 on a CPU; elsewhere each pass makes the matrices anew, and is slower.

A row w becomes round(w / s) with s = max |w| / 127, the simplest form that keeps the largest number of every row
(LLM.int8(), Dettmers 2022, without its outlier columns). So are the projections of layers and the head; norms, stacked
matrices of experts and the embedding stay as they are, and a head that is tied to it has a rounded copy.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.errors import UserError
from archlab.model.decoder import Decoder, Head
from archlab.model.projection import Projection, is_compiled_row, row_product
from archlab.model.torch_private import int8_product

LARGEST = 127

MOST_ROWS = 16
"""Up to so many rows torch's kernel is at least as fast as its bfloat16 product, and from there slower: it multiplies
rows one by one. To make a matrix anew takes as long as 16 to 20 rows."""


class Int8Projection(nn.Module):
    """x (scale * q)^T + b."""

    quantised: Tensor
    scale: Tensor

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        super().__init__()
        weight_NK = weight_NK.detach()
        scale_N = (weight_NK.float().abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        scale_N = scale_N.to(weight_NK.dtype)
        rounded_NK = (weight_NK.float() / scale_N.float()[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("quantised", rounded_NK.to(torch.int8))
        self.register_buffer("scale", scale_N)
        self.bias = bias_N

    @property
    def weight(self) -> Tensor:
        """[N, K], as the numbers say."""
        return self.quantised.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        y = self._product(x)
        return y if self.bias is None else y + self.bias

    def _product(self, x: Tensor) -> Tensor:
        if is_compiled_row(x):
            return (row_product(x, self.quantised) * self.scale).to(x.dtype)
        rows = x.shape[:-1].numel()
        # The kernel reads 16 numbers at a time, and would read past the end of a row of another width.
        is_fast = x.device.type == "cpu" and x.dtype is self.scale.dtype is torch.bfloat16
        if is_fast and rows <= MOST_ROWS and x.shape[-1] % 16 == 0:
            x_MK = x.reshape(rows, -1).contiguous()
            return int8_product(x_MK, self.quantised, self.scale).view(*x.shape[:-1], -1)
        return F.linear(x, self.weight.to(x.dtype))


class Int8Head(Head):
    """A model's head, of 8-bit numbers."""

    def __init__(self, model: Decoder) -> None:
        super().__init__(model.config)
        head, self.weight, self.bias = model.head, None, None
        self.narrow = head.narrow
        self.matrix = Int8Projection(model.embedding.weight if head.weight is None else head.weight, head.bias)

    def product(self, x_BTE: Tensor, embedding_VE: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, V], with the bias."""
        return self.matrix(x_BTE)


def to_int8(model: Decoder) -> Decoder:
    """The model itself, the weights of its projections and its head replaced; for inference only.

    UserError where its layers have no projections.
    """
    found = [
        (module, name, child)
        for module in model.layers.modules()
        for name, child in module.named_children()
        if isinstance(child, Projection)
    ]
    if not found:
        raise UserError("int8: the model's layers have no projections; allowed: another number format")
    for module, name, child in found:
        setattr(module, name, Int8Projection(child.weight, child.bias))
    model.head = Int8Head(model)
    return model
