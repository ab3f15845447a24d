"""One block: attention and MLP around the residual stream, with norms in the slots that the placement names."""

from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.config.model_schema import NoNorm
from archlab.model.attention import Attention, View
from archlab.model.mlp import make_mlp
from archlab.model.norms import make_norm

SLOTS = {"pre": ("before",), "post": ("stream",), "double": ("before", "after"), "output": ("after",)}
"""Placement -> where norms stand: before the branch, after it, on the stream after the addition."""


class Slots(nn.Module):
    """The norms around one branch; an empty slot passes its input through."""

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        filled = () if isinstance(layer.norm, NoNorm) else SLOTS[layer.norm.placement]
        for slot in ("before", "after", "stream"):
            setattr(self, slot, make_norm(layer.norm, layer.d_model) if slot in filled else nn.Identity())


class Block(nn.Module):
    """Data flow of `forward`, for each branch f of attention and MLP.

    serial:    x ─┬─ before ─ f ─ after ─ dropout ─ + ─ stream ─>  (attention's output is the MLP's x)
                  └─────────────────────────────────┘

    parallel:  x ─┬─ before ─ attention ─ after ─ dropout ─ + ─>   (shared: one `before` for both)
                  ├─ before ─ MLP ─────── after ─ dropout ──┤
                  └─────────────────────────────────────────┘
    """

    def __init__(self, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        self.parallel = layer.block.parallel
        self.attention = Attention(layer, kernel)
        self.mlp = make_mlp(layer)
        self.attention_norms = Slots(layer)
        self.mlp_norms = Slots(layer)
        if self.parallel == "shared":
            self.mlp_norms.before = nn.Identity()
        self.dropout = nn.Dropout(layer.dropout.branch)

    def forward(self, x_BTD: Tensor, view: View) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        around = self.attention_norms
        normed = around.before(x_BTD)
        mixed = self.dropout(around.after(self.attention(normed, view)))
        if self.parallel != "none":
            normed = self.mlp_norms.before(normed if self.parallel == "shared" else x_BTD)
            return x_BTD + mixed + self.dropout(self.mlp_norms.after(self.mlp(normed)))
        x_BTD = around.stream(x_BTD + mixed)
        around = self.mlp_norms
        return around.stream(x_BTD + self.dropout(around.after(self.mlp(around.before(x_BTD)))))
