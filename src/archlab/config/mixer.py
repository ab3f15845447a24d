"""Recurrent mixers of any kind, as one section of a config. They stand beside attention or in its place, and what they
keep of a text has a fixed size."""

from typing import Annotated, Literal

from pydantic import Field

from archlab.config.component import Absent
from archlab.config.gated_delta import GatedDelta, ResolvedGatedDelta
from archlab.config.mamba2 import Mamba2, ResolvedMamba2
from archlab.config.rglru import RGLRU, ResolvedRGLRU
from archlab.config.short_conv import ShortConv


class NoMixer(Absent):
    """No recurrent mixer in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


Mixer = Annotated[Mamba2 | GatedDelta | RGLRU | ShortConv | NoMixer, Field(discriminator="kind")]
ResolvedMixer = Annotated[
    ResolvedMamba2 | ResolvedGatedDelta | ResolvedRGLRU | ShortConv | NoMixer, Field(discriminator="kind")
]
