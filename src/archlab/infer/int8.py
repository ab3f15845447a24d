"""Weights as 8-bit whole numbers with a scale per row: half of bfloat16's bytes to read for every decoded token.

They are read as they are by a model in bfloat16 on a CPU; elsewhere each pass makes the matrices anew, and is slower.

A row w becomes round(w / s) with s = max |w| / 127, the simplest form that keeps the largest number of every row
(LLM.int8(), Dettmers 2022, without its outlier columns). Of a layer's projections only: embedding, head, norms and the
stacked matrices of experts stay as they are.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.projection import Projection

LARGEST = 127

MOST_ROWS = 8
"""Up to so many rows torch's kernel gains by reading the bytes themselves; it multiplies rows one by one."""


class Int8Projection(nn.Module):
    """x (scale * q)^T + b."""

    quantised: Tensor
    scale: Tensor

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        weight_NK = projection.weight.detach()
        scale_N = (weight_NK.float().abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        scale_N = scale_N.to(weight_NK.dtype)
        rounded_NK = (weight_NK.float() / scale_N.float()[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("quantised", rounded_NK.to(torch.int8))
        self.register_buffer("scale", scale_N)
        self.bias = projection.bias

    @property
    def weight(self) -> Tensor:
        """[N, K], as the numbers say."""
        return self.quantised.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        rows = x.shape[:-1].numel()
        # The kernel reads 16 numbers at a time, and would read past the end of a row of another width.
        is_fast = x.device.type == "cpu" and x.dtype is self.scale.dtype is torch.bfloat16
        if is_fast and rows <= MOST_ROWS and x.shape[-1] % 16 == 0:
            x_MK = x.reshape(rows, -1).contiguous()
            y = torch.ops.aten._weight_int8pack_mm(x_MK, self.quantised, self.scale).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.weight.to(x.dtype))
        return y if self.bias is None else y + self.bias


def to_int8(model: Decoder) -> Decoder:
    """The model itself, its projections' weights replaced; for inference only. UserError where it has none."""
    found = [
        (module, name, child)
        for module in model.layers.modules()
        for name, child in module.named_children()
        if isinstance(child, Projection)
    ]
    if not found:
        raise UserError("int8: the model's layers have no projections; allowed: another number format")
    for module, name, child in found:
        setattr(module, name, Int8Projection(child))
    return model
