"""Norms: which one, and where it stands."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from archlab.config.core.base import Positive, Settings, Share
from archlab.config.core.registry import Registered, Section

Placement = Literal["pre", "post", "double", "output", "carried"]

SLOTS: dict[Placement, tuple[str, ...]] = {
    "pre": ("before",),
    "post": ("stream",),
    "double": ("before", "after"),
    "output": ("after",),
    "carried": ("before",),
}
"""Placement -> where norms stand around a branch: before it (carried: and before the fork), after it, on the stream
after the addition."""


class AnyNorm(Settings):
    """What every norm says of itself."""

    display_name: ClassVar[str]
    """Name on drawings and in tables."""
    flops_per_number: ClassVar[int]
    """Operations on one number, that of its weight and bias included; 0: it does nothing."""

    @property
    def saved_per_number(self) -> int:
        """Numbers that training keeps for the backward pass: the input, in some also what the weight multiplies."""
        return 1

    @abstractmethod
    def n_parameters(self, width: int) -> int:
        """Learned numbers of one norm over `width` features."""


class WeightedNorm(AnyNorm):
    """What layer norm and RMS norm have in common: the epsilon, and the learned weight."""

    kind: Any
    eps: Positive = 1e-5
    """Added to the variance (or the mean square) before the root."""
    weight: bool = True
    """Multiply by a learned weight per feature; without it and without bias it is OLMo 1's norm."""
    unit_offset: bool = False
    """Multiply by 1 + weight, the weight starting at 0 (Gemma; Nemotron's LN1P)."""

    def n_parameters(self, width: int) -> int:
        """Learned numbers of one norm over `width` features."""
        return width * self.weight


class AnyLayerNorm(WeightedNorm):
    """(x - mean) / sqrt(var + eps) * w + b over the features, in float32 (Ba 2016)."""

    kind: Literal["layernorm"] = "layernorm"
    display_name: ClassVar[str] = "LayerNorm"
    bias: bool = True
    """Add a learned bias after the weight."""

    flops_per_number: ClassVar[int] = 7

    def n_parameters(self, width: int) -> int:
        """Learned numbers of one norm over `width` features."""
        return width * (self.weight + self.bias)


class AnyRMSNorm(WeightedNorm):
    """x / sqrt(mean(x^2) + eps) * w over the features, in float32 (Zhang & Sennrich 2019)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    display_name: ClassVar[str] = "RMSNorm"
    cast: Literal["after_weight", "before_weight"] = "after_weight"
    """When the result goes back to the activations' format: seen in bfloat16 only (Llama: before_weight)."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Of the common form its gradient is written by hand, which needs the input alone."""
        return 2 if self.cast == "before_weight" and self.weight else 1


class BlockNorm(AnyNorm, Registered):
    """The norm of a block, or none."""

    section: ClassVar[Section] = "norm"
    default_kind: ClassVar[str | None] = "rmsnorm"

    @property
    def slots(self) -> tuple[str, ...]:
        """Places of norms around a branch."""
        return ()

    @property
    def is_carried(self) -> bool:
        """Whether a branch is added to the normed stream, and not to the stream."""
        return False


class NoNorm(BlockNorm):
    """No normalisation."""

    kind: Literal["none"] = "none"

    flops_per_number: ClassVar[int] = 0

    def n_parameters(self, width: int) -> int:
        """None."""
        return 0 * width


class Norm(BlockNorm):
    """Base class of the norms of a block."""

    placement: Placement = "pre"
    """pre x+f(n(x)); post n(x+f(x)); double x+n'(f(n(x))); output x+n'(f(x)); carried n(x)+f(n(x)) (BLOOM's option).
    Names as in Xiong 2020."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Places of norms around a branch."""
        return SLOTS[self.placement]

    @property
    def is_carried(self) -> bool:
        """Whether a branch is added to the normed stream, and not to the stream."""
        return self.placement == "carried"


class LayerNorm(Norm, AnyLayerNorm):
    """Layer norm in the block."""


class RMSNorm(Norm, AnyRMSNorm):
    """RMS norm in the block."""


class ScaleNorm(Norm):
    """g x / max(||x||, eps), g one learned number that starts at sqrt(width) (Nguyen & Salazar 2019)."""

    kind: Literal["scalenorm"] = "scalenorm"
    display_name: ClassVar[str] = "ScaleNorm"
    eps: Positive = 1e-5
    """Least length that x is divided by."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """The input, and what g multiplies."""
        return 2

    def n_parameters(self, width: int) -> int:
        """One learned number, whatever the width."""
        return 1


class PartialRMSNorm(Norm):
    """RMS norm of all features by the mean square of the first of them (pRMSNorm in Zhang & Sennrich 2019)."""

    kind: Literal["prmsnorm"] = "prmsnorm"
    display_name: ClassVar[str] = "Partial RMSNorm"
    eps: Positive = 1e-5
    """Added to the mean square before the root."""
    share: Share = 0.0625
    """Of the features that the mean square is over, rounded up, but one at least."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """The input, and what the weight multiplies."""
        return 2

    def n_parameters(self, width: int) -> int:
        """A weight per feature."""
        return width


class DynamicTanh(Norm):
    """tanh(alpha x) * w + b in place of a norm, alpha one learned number; no statistics (Zhu 2025)."""

    kind: Literal["dyt"] = "dyt"
    display_name: ClassVar[str] = "Dynamic tanh"
    alpha: Positive = 0.5
    """Where alpha starts."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """The input, and its tanh."""
        return 2

    def n_parameters(self, width: int) -> int:
        """Weight and bias per feature, and alpha."""
        return 2 * width + 1
