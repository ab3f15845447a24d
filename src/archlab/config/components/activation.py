"""Activation functions, which act on each element separately. A config sets an activation by name: `activation:
silu`."""

from typing import Annotated, ClassVar, Literal

from archlab.config.core.registry import KindName, Named, Section, kinds


class Activation(Named):
    """Base class of activation functions."""

    section: ClassVar[Section] = "activation"

    gated_name: ClassVar[str] = ""
    """Name of a gated MLP with this activation, such as SwiGLU. If empty, the name is `gated` followed by the display
    name of the activation."""
    flops_per_number: ClassVar[int]
    """FLOPs per element. Each division and each elementary function, such as exp, counts as one FLOP."""
    n_parameters: ClassVar[int] = 0
    """Number of learned parameters of the activation, which does not depend on the width of its input."""
    saved_per_number: ClassVar[float] = 1
    """Number of values per element that training stores for the backward pass. It is 0 if the backward pass needs only
    the output, because the next operation stores the output anyway."""
    computes_in_float32: ClassVar[bool] = False
    """Whether the stored values are in float32 regardless of the dtype of the activations."""


ActivationName = Annotated[str, KindName(Activation)]


def activation_named(name: str) -> type[Activation]:
    return kinds(Activation)[name]


def name_of_mlp(activation: str, *, is_gated: bool) -> str:
    """Return the name of an MLP with the given activation, such as ReLU or SwiGLU."""
    kind = activation_named(activation)
    return (kind.gated_name or f"gated {kind.display_name}") if is_gated else kind.display_name


class ReLU(Activation):
    """max(x, 0)."""

    kind: Literal["relu"] = "relu"
    display_name: ClassVar[str] = "ReLU"
    gated_name: ClassVar[str] = "ReGLU"
    flops_per_number: ClassVar[int] = 1
    saved_per_number: ClassVar[float] = 0


class GELU(Activation):
    """x Phi(x), computed with erf (Hendrycks 2016)."""

    kind: Literal["gelu"] = "gelu"
    display_name: ClassVar[str] = "GELU"
    gated_name: ClassVar[str] = "GEGLU"
    flops_per_number: ClassVar[int] = 5


class GELUTanh(Activation):
    """GELU approximated with tanh instead of erf (Hendrycks 2016)."""

    kind: Literal["gelu_tanh"] = "gelu_tanh"
    display_name: ClassVar[str] = "GELU (tanh)"
    gated_name: ClassVar[str] = "GEGLU (tanh)"
    flops_per_number: ClassVar[int] = 9


class QuickGELU(Activation):
    """x sigmoid(1.702 x)."""

    kind: Literal["quick_gelu"] = "quick_gelu"
    display_name: ClassVar[str] = "GELU (quick)"
    gated_name: ClassVar[str] = "GEGLU (quick)"
    flops_per_number: ClassVar[int] = 5
    saved_per_number: ClassVar[float] = 2


class SiLU(Activation):
    """x sigmoid(x), which is swish with beta = 1 (Ramachandran 2017)."""

    kind: Literal["silu"] = "silu"
    display_name: ClassVar[str] = "SiLU"
    gated_name: ClassVar[str] = "SwiGLU"
    flops_per_number: ClassVar[int] = 4


class ELU(Activation):
    """x if x > 0, otherwise exp(x) - 1 (Clevert 2016)."""

    kind: Literal["elu"] = "elu"
    display_name: ClassVar[str] = "ELU"
    flops_per_number: ClassVar[int] = 4


class SELU(Activation):
    """ELU scaled so that activations keep mean 0 and variance 1 (Klambauer 2017)."""

    kind: Literal["selu"] = "selu"
    display_name: ClassVar[str] = "SELU"
    flops_per_number: ClassVar[int] = 5


class ReLUSquared(Activation):
    """max(x, 0)^2 (So 2021, Primer)."""

    kind: Literal["relu_squared"] = "relu_squared"
    display_name: ClassVar[str] = "ReLU²"
    flops_per_number: ClassVar[int] = 2


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    kind: Literal["sigmoid"] = "sigmoid"
    display_name: ClassVar[str] = "sigmoid"
    gated_name: ClassVar[str] = "GLU"
    flops_per_number: ClassVar[int] = 3
    saved_per_number: ClassVar[float] = 0


class Softplus(Activation):
    """log(1 + exp(x))."""

    kind: Literal["softplus"] = "softplus"
    flops_per_number: ClassVar[int] = 3


class Identity(Activation):
    """Identity function, which makes a gated MLP bilinear."""

    kind: Literal["identity"] = "identity"
    display_name: ClassVar[str] = "identity"
    gated_name: ClassVar[str] = "bilinear"
    flops_per_number: ClassVar[int] = 0
    saved_per_number: ClassVar[float] = 0


class XIELU(Activation):
    """a x^2 + x/2 if x > 0, otherwise (expm1(min(x, -1e-6)) - x) b + x/2; a and b are learned, and b > 1/2 (Huang
    2024)."""

    kind: Literal["xielu"] = "xielu"
    display_name: ClassVar[str] = "xIELU"
    flops_per_number: ClassVar[int] = 8
    n_parameters: ClassVar[int] = 2
    saved_per_number: ClassVar[float] = 4.25
    """Four float32 values and one byte per element. The values are x, a x, expm1(min(x, -1e-6)), and the factor of b.
    The byte stores whether x is positive."""
    computes_in_float32: ClassVar[bool] = True
