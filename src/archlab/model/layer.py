"""One layer: branches around the residual stream, the norms in their slots, and which module each branch is."""

from collections.abc import Mapping

from torch import Tensor, nn

from archlab.config.components.component import Component
from archlab.config.components.dense import Dense
from archlab.config.components.gated_delta import GatedDelta as GatedDeltaConfig
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba2 import Mamba2 as Mamba2Config
from archlab.config.components.moe import MoE as MoEConfig
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import NoNorm
from archlab.config.components.plug_in import PlugInComponent
from archlab.config.components.rglru import RGLRU as RGLRUConfig  # noqa: N811 - an acronym, not a constant
from archlab.config.components.short_conv import ShortConv as ShortConvConfig
from archlab.config.layers import Branch, LayerConfig
from archlab.model.arithmetic import Same, scaled
from archlab.model.attention import Attention
from archlab.model.context import Context, SequenceShard
from archlab.model.gated_delta import GatedDelta
from archlab.model.latent_attention import LatentAttention
from archlab.model.mamba2 import Mamba2
from archlab.model.mlp import MLP
from archlab.model.moe import MoE
from archlab.model.norms import BranchNorms
from archlab.model.own import own_module
from archlab.model.rglru import RGLRU
from archlab.model.short_conv import ShortConv
from archlab.model.state import NO_STATES, State


class Layer(nn.Module):
    """What each branch makes of the stream is added to it.

    One stage after the other. A stage with the branches f, g, ...; m is a branch's multiplier:

    x ─┬─ before ─┬─ f ─ after ─ · m ─ dropout ─ + ─ stream ─>
       │          └─ g ─ after ─ · m ─ dropout ──┤               (g behind the same norm, or behind one of its own)
       └─────────────────────────────────────────┘

    Serial is attention in one stage and the MLP in the next; in a parallel block both are branches of one stage; a
    recurrent mixer stands beside attention or in its place. Carried: what is added to is not x, but x behind `before`.
    The branch `f` is the module `f`, its norms are `f_norms`.
    """

    def __init__(self, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        self.stages = layer.stages
        for branch in layer.branches:
            self.add_module(branch.name, make_component(branch.component, layer, kernel))
        for branch in layer.branches:
            self.add_module(f"{branch.name}_norms", BranchNorms(layer, branch))
        self.dropout = nn.Dropout(layer.dropout.branch) if layer.dropout.branch else Same()
        self.is_carried = not isinstance(layer.norm, NoNorm) and layer.norm.placement == "carried"

    def forward(
        self, x_BTD: Tensor, context: Context, states: Mapping[str, State | SequenceShard] = NO_STATES
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]. `states` by the names of branches."""
        for stage in self.stages:
            x_BTD = self._stage(stage, x_BTD, context, states)
        return x_BTD

    def _stage(
        self, stage: tuple[Branch, ...], x_BTD: Tensor, context: Context, states: Mapping[str, State | SequenceShard]
    ) -> Tensor:
        first = self._norms(stage[0])
        normed_BTD = first.before(x_BTD)
        sum_BTD = normed_BTD if self.is_carried else x_BTD
        for branch in stage:
            component, norms = getattr(self, branch.name), self._norms(branch)
            read_BTD = normed_BTD if branch is stage[0] or branch.shares_input else norms.before(x_BTD)
            given_BTD = norms.after(component(read_BTD, context, states.get(branch.name)))
            sum_BTD = sum_BTD + self.dropout(scaled(given_BTD, branch.multiplier))
        return first.stream(sum_BTD)

    def _norms(self, branch: Branch) -> BranchNorms:
        return getattr(self, f"{branch.name}_norms")


def make_component(config: Component, layer: LayerConfig, kernel: str) -> nn.Module:
    """The module of that config, in that layer: `forward(x_BTD, context, state) -> y_BTD`."""
    match config:
        case MultiHead():
            return Attention(config, layer, kernel)
        case Latent():
            return LatentAttention(config, layer, kernel)
        case Mamba2Config():
            return Mamba2(config, layer.d_model)
        case GatedDeltaConfig():
            return GatedDelta(config, layer.d_model)
        case RGLRUConfig():
            return RGLRU(config, layer.d_model)
        case ShortConvConfig():
            return ShortConv(config, layer.d_model)
        case Dense():
            return MLP(config, layer)
        case MoEConfig():
            return MoE(config, layer)
        case PlugInComponent():
            return own_module(config, layer.site)
        case _:
            raise TypeError(f"no module for a {type(config).__name__}")
