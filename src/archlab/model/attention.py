"""Multi-head attention, MHA to MQA. Shapes: B batch, T tokens, D d_model, H query heads, K key/value heads, C head_dim."""

from dataclasses import dataclass

from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.model.init import Projection
from archlab.model.kernels import KERNELS
from archlab.model.rotary import Rotation


@dataclass(frozen=True)
class View:
    """What a layer's attention needs to know of where the tokens stand."""

    mask_TT: Tensor | None
    """True where a query sees a key; None for plain causal."""
    rotation: Rotation | None
    """How queries and keys turn; None without RoPE."""


class Attention(nn.Module):
    """softmax(scale q k^T) v per head, then mixed by `out`."""

    def __init__(self, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        config = layer.attention
        self.head_dim, self.scale, self.dropout = config.head_dim, config.scale, layer.dropout.attention
        self.kernel = KERNELS[kernel]
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q = Projection(layer.d_model, width, bias=config.qkv_bias, role="input")
        self.k = Projection(layer.d_model, kv_width, bias=config.qkv_bias, role="input")
        self.v = Projection(layer.d_model, kv_width, bias=config.qkv_bias, role="input")
        self.out = Projection(width, layer.d_model, bias=config.out_bias, role="output")

    def forward(self, x_BTD: Tensor, view: View) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        q_BHTC, k_BKTC, v_BKTC = (self._split(project(x_BTD)) for project in (self.q, self.k, self.v))
        if view.rotation is not None:
            q_BHTC, k_BKTC = view.rotation.turn(q_BHTC), view.rotation.turn(k_BKTC)
        dropout = self.dropout if self.training else 0.0
        mixed_BHTC = self.kernel(q_BHTC, k_BKTC, v_BKTC, view.mask_TT, self.scale, dropout)
        return self.out(mixed_BHTC.transpose(1, 2).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
