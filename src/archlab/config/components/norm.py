"""Normalization: the kinds of norm, and their placement in a block."""

from abc import abstractmethod
from collections.abc import Mapping
from math import ceil
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
"""Places of norms around a branch, for each placement. `before`: on the branch's input. `after`: on its output.
`stream`: on the residual stream after the addition.

With the placement `carried`, the norm is applied before the stream splits into the branch and the residual connection,
so that both start from the normalized stream.
"""


class AnyNorm(Settings):
    """Base class of all norms: their costs and their display name."""

    display_name: ClassVar[str]
    """Name in drawings and tables."""
    flops_per_number: ClassVar[int]
    """FLOPs per element, including the multiplication by the weight and the addition of the bias. 0 if the norm does
    nothing."""

    @property
    def saved_per_number(self) -> int:
        """Number of values per element that training stores for the backward pass. Every norm stores its input. Some
        norms also store the value before the multiplication by the weight."""
        return 1

    @abstractmethod
    def n_parameters(self, width: int) -> int:
        """Return the number of parameters of one norm over `width` features."""


class WeightedNorm(AnyNorm):
    """Base class of layer norm and RMS norm, with an epsilon and a learned weight."""

    needing: ClassVar[Mapping[str, tuple[str, ...]]] = {"weight": ("unit_offset", "cast")}
    kind: Any
    eps: Positive = 1e-5
    """Small number added to the variance (layer norm) or the mean square (RMS norm) before the square root."""
    weight: bool = True
    """Whether the result is multiplied by a learned weight for each feature. A layer norm with neither weight nor bias
    is the norm of OLMo 1."""
    unit_offset: bool = False
    """Whether the result is multiplied by 1 + weight instead of weight. The weight is then initialized to 0 (Gemma;
    LN1P in Nemotron)."""

    def n_parameters(self, width: int) -> int:
        return width * self.weight


class AnyLayerNorm(WeightedNorm):
    """Layer norm: (x - mean) / sqrt(var + eps) * w + b over the features, in float32 (Ba 2016)."""

    kind: Literal["layernorm"] = "layernorm"
    display_name: ClassVar[str] = "LayerNorm"
    bias: bool = True
    """Whether a learned bias for each feature is added after the multiplication by the weight."""

    flops_per_number: ClassVar[int] = 7

    def n_parameters(self, width: int) -> int:
        return width * (self.weight + self.bias)


class AnyRMSNorm(WeightedNorm):
    """RMS norm: x / sqrt(mean(x^2) + eps) * w over the features, in float32 (Zhang & Sennrich 2019)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    display_name: ClassVar[str] = "RMSNorm"
    cast: Literal["after_weight", "before_weight"] = "after_weight"
    """When the result is cast back to the dtype of the activations: after or before the multiplication by the weight.
    The choice matters only in low precision such as bfloat16 (Llama: before_weight)."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Return 2 if the result is cast before the multiplication by a weight: the input and the value before the
        multiplication are stored. Otherwise return 1, because the hand-written backward pass needs only the input."""
        return 2 if self.cast == "before_weight" and self.weight else 1


class BlockNorm(AnyNorm, Registered):
    """Base class of all norms of a block, including `none`."""

    section: ClassVar[Section] = "norm"
    default_kind: ClassVar[str | None] = "rmsnorm"

    @property
    def slots(self) -> tuple[str, ...]:
        """Places around a branch that have a norm."""
        return ()

    @property
    def is_carried(self) -> bool:
        """Whether a branch's output is added to the normalized stream instead of the stream itself."""
        return False


class NoNorm(BlockNorm):
    """No normalization."""

    kind: Literal["none"] = "none"

    flops_per_number: ClassVar[int] = 0

    def n_parameters(self, width: int) -> int:
        return 0 * width


class Norm(BlockNorm):
    """Base class of all norms of a block except `none`."""

    placement: Placement = "pre"
    """Placement of the norm n around a branch f, with names as in Xiong 2020. `pre`: x + f(n(x)). `post`: n(x +
    f(x)). `double`: x + n'(f(n(x))). `output`: x + n'(f(x)). `carried`: n(x) + f(n(x)) (an option of BLOOM)."""

    @property
    def slots(self) -> tuple[str, ...]:
        return SLOTS[self.placement]

    @property
    def is_carried(self) -> bool:
        return self.placement == "carried"


class LayerNorm(Norm, AnyLayerNorm):
    """Layer norm around the branches of a block."""


class RMSNorm(Norm, AnyRMSNorm):
    """RMS norm around the branches of a block."""


class ScaleNorm(Norm):
    """Scale norm: g x / max(||x||, eps), where g is a learned scalar that is initialized to sqrt(width) (Nguyen &
    Salazar 2019)."""

    kind: Literal["scalenorm"] = "scalenorm"
    display_name: ClassVar[str] = "ScaleNorm"
    eps: Positive = 1e-5
    """Lower limit on the divisor ||x||."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """Return 2, because the input and the value that g multiplies are stored."""
        return 2

    def n_parameters(self, width: int) -> int:
        return 1


class PartialRMSNorm(Norm):
    """RMS norm whose mean square is taken over the first features only (pRMSNorm in Zhang & Sennrich 2019)."""

    kind: Literal["prmsnorm"] = "prmsnorm"
    display_name: ClassVar[str] = "Partial RMSNorm"
    eps: Positive = 1e-5
    """Small number added to the mean square before the square root."""
    share: Share = 0.0625
    """Fraction of the features over which the mean square is taken. The number of these features is rounded up, and is
    at least one."""

    flops_per_number: ClassVar[int] = 3

    @property
    def saved_per_number(self) -> int:
        """Return 2, because the input and the value that the weight multiplies are stored."""
        return 2

    def n_first(self, width: int) -> int:
        """Return the number of features over which the mean square is taken."""
        return max(1, ceil(self.share * width))

    def n_parameters(self, width: int) -> int:
        return width


class DynamicTanh(Norm):
    """Dynamic tanh, which replaces a norm: tanh(alpha x) * w + b, where alpha is a learned scalar. It needs no
    statistics of x (Zhu 2025)."""

    kind: Literal["dyt"] = "dyt"
    display_name: ClassVar[str] = "Dynamic tanh"
    alpha: Positive = 0.5
    """Initial value of the learned scalar alpha."""

    flops_per_number: ClassVar[int] = 4

    @property
    def saved_per_number(self) -> int:
        """Return 2, because the input and its tanh are stored."""
        return 2

    def n_parameters(self, width: int) -> int:
        return 2 * width + 1
