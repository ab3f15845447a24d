"""Norms: the kinds, and their placement in a block."""

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
"""Norms around a branch, by placement. `before`: at the branch's input. `after`: at its output. `stream`: on the stream
after the addition. The placement `carried` has its norm before the fork, so that the stream is normed as well."""


class AnyNorm(Settings):
    """Facts that every norm states about itself."""

    display_name: ClassVar[str]
    """Name in drawings and tables."""
    flops_per_number: ClassVar[int]
    """Operations per number, including those of the weight and the bias. 0 if the norm does nothing."""

    @property
    def saved_per_number(self) -> int:
        """Numbers that training keeps for the backward pass: the input and, for some norms, the number that the weight
        multiplies."""
        return 1

    @abstractmethod
    def n_parameters(self, width: int) -> int:
        """Return the number of parameters of one norm over `width` features."""


class WeightedNorm(AnyNorm):
    """Base of layer norm and RMS norm: the epsilon and the learned weight."""

    kind: Any
    eps: Positive = 1e-5
    """Small number added to the variance (or the mean square) before the square root."""
    weight: bool = True
    """Whether a learned weight per feature multiplies the result. A layer norm with neither weight nor bias is the norm
    of OLMo 1."""
    unit_offset: bool = False
    """Whether the factor is 1 + weight, with the weight starting at 0 (Gemma; LN1P in Nemotron)."""

    def n_parameters(self, width: int) -> int:
        return width * self.weight


class AnyLayerNorm(WeightedNorm):
    """(x - mean) / sqrt(var + eps) * w + b over the features, in float32 (Ba 2016)."""

    kind: Literal["layernorm"] = "layernorm"
    display_name: ClassVar[str] = "LayerNorm"
    bias: bool = True
    """Whether a learned bias per feature is added after the weight."""

    flops_per_number: ClassVar[int] = 7

    def n_parameters(self, width: int) -> int:
        return width * (self.weight + self.bias)


class AnyRMSNorm(WeightedNorm):
    """x / sqrt(mean(x^2) + eps) * w over the features, in float32 (Zhang & Sennrich 2019)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    display_name: ClassVar[str] = "RMSNorm"
    cast: Literal["after_weight", "before_weight"] = "after_weight"
    """When the result is cast back to the dtype of the activations: after or before the weight multiplies it. The two
    differ only in bfloat16 (Llama: before_weight)."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Return 1 for the usual form, because its hand-written backward pass needs only the input."""
        return 2 if self.cast == "before_weight" and self.weight else 1


class BlockNorm(AnyNorm, Registered):
    """Norm of a block, or none."""

    section: ClassVar[Section] = "norm"
    default_kind: ClassVar[str | None] = "rmsnorm"

    @property
    def slots(self) -> tuple[str, ...]:
        """Places of the norms around a branch."""
        return ()

    @property
    def is_carried(self) -> bool:
        """Whether a branch is added to the normed stream instead of the stream."""
        return False


class NoNorm(BlockNorm):
    """No normalization."""

    kind: Literal["none"] = "none"

    flops_per_number: ClassVar[int] = 0

    def n_parameters(self, width: int) -> int:
        return 0 * width


class Norm(BlockNorm):
    """Base class of the norms of a block."""

    placement: Placement = "pre"
    """Place of the norm n around a branch f, with names as in Xiong 2020. `pre`: x + f(n(x)). `post`: n(x + f(x)).
    `double`: x + n'(f(n(x))). `output`: x + n'(f(x)). `carried`: n(x) + f(n(x)) (an option of BLOOM)."""

    @property
    def slots(self) -> tuple[str, ...]:
        return SLOTS[self.placement]

    @property
    def is_carried(self) -> bool:
        return self.placement == "carried"


class LayerNorm(Norm, AnyLayerNorm):
    """Layer norm of a block."""


class RMSNorm(Norm, AnyRMSNorm):
    """RMS norm of a block."""


class ScaleNorm(Norm):
    """g x / max(||x||, eps), where g is one learned number that starts at sqrt(width) (Nguyen & Salazar 2019)."""

    kind: Literal["scalenorm"] = "scalenorm"
    display_name: ClassVar[str] = "ScaleNorm"
    eps: Positive = 1e-5
    """Smallest length that x is divided by."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """Return 2: the input, and the number that g multiplies."""
        return 2

    def n_parameters(self, width: int) -> int:
        return 1


class PartialRMSNorm(Norm):
    """RMS norm that takes the mean square from the first features only (pRMSNorm in Zhang & Sennrich 2019)."""

    kind: Literal["prmsnorm"] = "prmsnorm"
    display_name: ClassVar[str] = "Partial RMSNorm"
    eps: Positive = 1e-5
    """Small number added to the mean square before the square root."""
    share: Share = 0.0625
    """Fraction of the features used for the mean square, rounded up; at least one feature."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """Return 2: the input, and the number that the weight multiplies."""
        return 2

    def n_parameters(self, width: int) -> int:
        return width


class DynamicTanh(Norm):
    """tanh(alpha x) * w + b instead of a norm, where alpha is one learned number. It needs no statistics (Zhu 2025)."""

    kind: Literal["dyt"] = "dyt"
    display_name: ClassVar[str] = "Dynamic tanh"
    alpha: Positive = 0.5
    """Initial value of alpha."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Return 2: the input, and its tanh."""
        return 2

    def n_parameters(self, width: int) -> int:
        """Return the number of weights and biases, one each per feature, and alpha."""
        return 2 * width + 1
