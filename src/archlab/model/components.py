"""From a component's config to its module."""

from torch import nn

from archlab.config.component import Component
from archlab.config.dense import ResolvedDense
from archlab.config.gated_delta import ResolvedGatedDelta
from archlab.config.latent_attention import ResolvedLatent
from archlab.config.layers import LayerConfig
from archlab.config.mamba2 import ResolvedMamba2
from archlab.config.moe import ResolvedMoE
from archlab.config.multi_head import ResolvedMultiHead
from archlab.config.rglru import ResolvedRGLRU
from archlab.config.short_conv import ShortConv as ShortConvConfig
from archlab.model.attention import Attention
from archlab.model.gated_delta import GatedDelta
from archlab.model.latent_attention import LatentAttention
from archlab.model.mamba2 import Mamba2
from archlab.model.mlp import MLP
from archlab.model.moe import MoE
from archlab.model.rglru import RGLRU
from archlab.model.short_conv import ShortConv


def make_component(config: Component, layer: LayerConfig, kernel: str) -> nn.Module:
    """The module of that config, in that layer: `forward(x_BTD, context, state) -> y_BTD`."""
    match config:
        case ResolvedMultiHead():
            return Attention(config, layer, kernel)
        case ResolvedLatent():
            return LatentAttention(config, layer, kernel)
        case ResolvedMamba2():
            return Mamba2(config, layer.d_model)
        case ResolvedGatedDelta():
            return GatedDelta(config, layer.d_model)
        case ResolvedRGLRU():
            return RGLRU(config, layer.d_model)
        case ShortConvConfig():
            return ShortConv(config, layer.d_model)
        case ResolvedDense():
            return MLP(config, layer)
        case ResolvedMoE():
            return MoE(config, layer)
        case _:
            raise TypeError(f"no module for a {type(config).__name__}")
