"""Recurrent mixers, which stand beside attention or in its place."""

from typing import Literal

from archlab.config.component import Absent


class NoMixer(Absent):
    """No recurrent mixer in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


Mixer = NoMixer
