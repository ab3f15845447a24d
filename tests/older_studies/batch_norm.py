"""Gated MLP with an optional norm before its last matrix, as in BitNet: none, RMSNorm, or batch norm.

Batch norm (Ioffe 2015) divides every feature by its standard deviation over all tokens of the batch. The batch contains
not only a token and its past, but also later tokens of the same text and other texts. In training, a token therefore
gets information about its future. At inference, running averages replace the statistics of the batch. The weights were
not trained with these averages.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlab


class Options(archlab.Component):
    """Options of the MLP in a config."""

    d_ff: int = 176
    norm: Literal["none", "rms", "batch"] = "none"

    def parameters(self, site: Any) -> dict[str, int]:
        """Count the three matrices and the weights of the norm."""
        return {"mlp": 3 * site.d_model * self.d_ff, "norms": self.d_ff * (self.norm != "none")}

    # Another name for `this` would change the names of the committed runs.
    def work(self, site: Any, this: Any) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield the operations of a gated MLP and of the norm."""
        yield this.product("mlp", site.d_model, self.d_ff)
        yield this.product("mlp", site.d_model, self.d_ff, shares_input=True)
        yield this.element_wise("activations", "mlp", self.d_ff, flops=4, saved=1)
        yield this.element_wise("element-wise", "mlp", self.d_ff, flops=1, read=2, saved=2)
        if self.norm != "none":
            yield this.element_wise("element-wise", "norms", self.d_ff, flops=4, saved=1)
        yield this.product("mlp", self.d_ff, site.d_model)


class NormedMLP(nn.Module):
    """Compute down(norm(silu(gate x) * up x))."""

    mean: Tensor
    variance: Tensor

    def __init__(self, options: Options, site: Any) -> None:
        super().__init__()
        self.norm, width = options.norm, options.d_ff
        self.gate, self.up = (archlab.Projection(site.d_model, width, bias=False, role="input") for _ in range(2))
        self.down = archlab.Projection(width, site.d_model, bias=False, role="output")
        if self.norm != "none":
            self.weight, self.constants = nn.Parameter(torch.ones(width)), {"weight": 1.0}
        if self.norm == "batch":
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("variance", torch.ones(width))

    def forward(self, x_BTD: Tensor, context: Any = None, state: Any = None) -> Tensor:
        """Map a tensor of shape [batch, tokens, d_model] to the same shape."""
        hidden_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        if self.norm == "rms":
            hidden_BTF = F.rms_norm(hidden_BTF, hidden_BTF.shape[-1:], self.weight.to(hidden_BTF.dtype), 1e-5)
        elif self.norm == "batch":
            rows = hidden_BTF.flatten(0, 1).float()
            normed = F.batch_norm(rows, self.mean, self.variance, self.weight, None, self.training, 0.1, 1e-5)
            hidden_BTF = normed.view_as(hidden_BTF).to(x_BTD.dtype)
        return self.down(hidden_BTF)


archlab.register_mlp("normed", Options, NormedMLP)
