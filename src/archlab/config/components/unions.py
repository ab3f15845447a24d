"""Which kinds the components of a layer may be, as one section of a config each: attention, mixer and mlp."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from archlab.config.components.component import Absent
from archlab.config.components.dense import GatedMLP, PlainMLP
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.plug_in import PlugInMixer, PlugInMLP
from archlab.config.components.rglru import RGLRU
from archlab.config.components.short_conv import ShortConv


class NoAttention(Absent):
    """No attention in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]

    part: ClassVar[str] = "attention"
    flop_parts: ClassVar[tuple[str, ...]] = ("projections", "scores")


def _multi_head_by_default(value: Any) -> Any:
    return {"kind": "multihead", **value} if isinstance(value, dict) else value


Attention = Annotated[
    MultiHead | Latent | NoAttention, Field(discriminator="kind"), BeforeValidator(_multi_head_by_default)
]


class NoMixer(Absent):
    """No recurrent mixer in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]

    part: ClassVar[str] = "mixer"
    flop_parts: ClassVar[tuple[str, ...]] = ("mixer",)


Mixer = Annotated[Mamba2 | GatedDelta | RGLRU | ShortConv | PlugInMixer | NoMixer, Field(discriminator="kind")]
"""Recurrent: beside attention or in its place; what it keeps of a text has a fixed size."""


class NoMLP(Absent):
    """No MLP in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]

    part: ClassVar[str] = "mlp"
    flop_parts: ClassVar[tuple[str, ...]] = ("mlp",)


MLP = Annotated[PlainMLP | GatedMLP | MoE | PlugInMLP | NoMLP, Field(discriminator="kind")]
