"""The feed-forward branch: a dense MLP, a mixture of experts, or none."""

from typing import Annotated, Literal

from pydantic import Field

from archlab.config.component import Absent
from archlab.config.dense import GatedMLP, PlainMLP, ResolvedGatedMLP, ResolvedPlainMLP
from archlab.config.moe import MoE, ResolvedMoE


class NoMLP(Absent):
    """No MLP in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


MLP = Annotated[PlainMLP | GatedMLP | MoE | NoMLP, Field(discriminator="kind")]
ResolvedMLP = Annotated[ResolvedPlainMLP | ResolvedGatedMLP | ResolvedMoE | NoMLP, Field(discriminator="kind")]
