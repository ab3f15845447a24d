"""One block: attention and MLP around the residual stream, with norms in the slots that the placement names."""

from torch import Tensor, nn

from archlab.config.layers import NORM_SLOTS, LayerConfig
from archlab.config.model_schema import NoNorm
from archlab.model.arithmetic import scaled
from archlab.model.attention import Attention
from archlab.model.cache import LayerCache
from archlab.model.mlp import MLP
from archlab.model.norms import make_norm
from archlab.model.view import View


class Slots(nn.Module):
    """The norms around one branch; an empty slot passes its input through."""

    before: nn.Module
    after: nn.Module
    stream: nn.Module

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        filled = () if isinstance(layer.norm, NoNorm) else NORM_SLOTS[layer.norm.placement]
        for slot in ("before", "after", "stream"):
            setattr(self, slot, make_norm(layer.norm, layer.d_model) if slot in filled else nn.Identity())


class Block(nn.Module):
    """Data flow of `forward`, for each branch f of attention and MLP; m is the branch's multiplier.

    serial:    x ─┬─ before ─ f ─ after ─ · m ─ dropout ─ + ─ stream ─>  (attention's output is the MLP's x)
                  └───────────────────────────────────────┘

    carried:   x ─ before ─┬─ f ─ · m ─ dropout ─ + ─>
                           └──────────────────────┘

    parallel:  x ─┬─ before ─ attention ─ after ─ · m ─ dropout ─ + ─>   (shared: one `before` for both)
                  ├─ before ─ MLP ─────── after ─ · m ─ dropout ──┤
                  └───────────────────────────────────────────────┘
    """

    def __init__(self, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        self.config = layer.block
        self.attention = Attention(layer, kernel)
        self.mlp = MLP(layer)
        self.attention_norms = Slots(layer)
        self.mlp_norms = Slots(layer)
        if layer.block.parallel == "shared":
            self.mlp_norms.before = nn.Identity()
        self.dropout = nn.Dropout(layer.dropout.branch)
        self.carried = not isinstance(layer.norm, NoNorm) and layer.norm.placement == "carried"

    def forward(self, x_BTD: Tensor, view: View, cache: LayerCache | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        normed_BTD = self.attention_norms.before(x_BTD)
        mixed_BTD = self.attention_norms.after(self.attention(normed_BTD, view, cache))
        mixed_BTD = self.dropout(scaled(mixed_BTD, self.config.attention_multiplier))
        if self.config.parallel == "none":
            x_BTD = self.attention_norms.stream((normed_BTD if self.carried else x_BTD) + mixed_BTD)
            normed_BTD = self.mlp_norms.before(x_BTD)
            return self.mlp_norms.stream((normed_BTD if self.carried else x_BTD) + self._mlp(normed_BTD))
        if self.config.parallel == "separate":
            normed_BTD = self.mlp_norms.before(x_BTD)
        return x_BTD + mixed_BTD + self._mlp(normed_BTD)

    def _mlp(self, normed_BTD: Tensor) -> Tensor:
        branch_BTD = self.mlp_norms.after(self.mlp(normed_BTD))
        return self.dropout(scaled(branch_BTD, self.config.mlp_multiplier))
