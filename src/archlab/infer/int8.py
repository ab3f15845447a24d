"""Int8 weights with one scale per row. A decoding step then reads half as many bytes as with bfloat16 weights.

A compiled step for one sequence multiplies with the int8 weights directly, and so does a bfloat16 model on a CPU. All
other passes dequantize the matrices first, which is slower.

A row w becomes round(w / s) with s = max |w| / 127. This is the simplest form of LLM.int8() (Dettmers 2022), without
its outlier columns.

The projections of layers and the head are converted. Norms, stacked matrices of experts and the embedding are not
changed. A head that shares the embedding's matrix gets its own quantized copy.
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
"""Maximum number of input rows for torch's int8 kernel. With more rows, a bfloat16 product is faster.

The kernel multiplies the rows one by one. Dequantizing the matrix takes as long as multiplying 16 to 20 rows.
"""


class Int8Projection(nn.Module):
    """Linear map with int8 weights: x (scale * q)^T + b."""

    quantized: Tensor
    scale: Tensor

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        super().__init__()
        weight_NK = weight_NK.detach()
        scale_N = (weight_NK.float().abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        scale_N = scale_N.to(weight_NK.dtype)
        rounded_NK = (weight_NK.float() / scale_N.float()[:, None]).round().clamp(-LARGEST, LARGEST)
        self.register_buffer("quantized", rounded_NK.to(torch.int8))
        self.register_buffer("scale", scale_N)
        self.bias = bias_N

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, [N, K]."""
        return self.quantized.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear map: [..., K] -> [..., N]."""
        y = self._product(x)
        return y if self.bias is None else y + self.bias

    def _product(self, x: Tensor) -> Tensor:
        if is_compiled_row(x):
            return (row_product(x, self.quantized) * self.scale).to(x.dtype)
        rows = x.shape[:-1].numel()
        # The kernel reads 16 numbers at a time. With another width it would read past the end of a row.
        is_fast = x.device.type == "cpu" and x.dtype is self.scale.dtype is torch.bfloat16
        if is_fast and rows <= MOST_ROWS and x.shape[-1] % 16 == 0:
            x_MK = x.reshape(rows, -1).contiguous()
            return int8_product(x_MK, self.quantized, self.scale).view(*x.shape[:-1], -1)
        return F.linear(x, self.weight.to(x.dtype))


class Int8Head(Head):
    """A model's head with int8 weights."""

    def __init__(self, model: Decoder) -> None:
        super().__init__(model.config)
        head, self.weight, self.bias = model.head, None, None
        self.transform, self.narrow = head.transform, head.narrow
        self.matrix = Int8Projection(model.embedding.weight if head.weight is None else head.weight, head.bias)

    def product(self, x_BTE: Tensor, embedding_VE: Tensor) -> Tensor:
        """Return the matrix product plus the bias: [B, T, E] -> [B, T, V]."""
        return self.matrix(x_BTE)


def to_int8(model: Decoder) -> Decoder:
    """Convert the weights of a model's projections and head to int8 in place, for inference. Return the model.

    Raise UserError if the model's layers have no projections.
    """
    projections = [
        (module, name, child)
        for layer in model.all_layers
        for module in layer.modules()
        for name, child in module.named_children()
        if isinstance(child, Projection)
    ]
    if not projections:
        raise UserError("int8: the model's layers have no projections to convert; use another dtype")
    for module, name, child in projections:
        setattr(module, name, Int8Projection(child.weight, child.bias))
    model.head = Int8Head(model)
    return model
