"""Gated short convolution."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from archlab.config.components.component import Mixer, ProjectionShape, RoleName, Site, StateTensor, divide_evenly
from archlab.config.components.recurrent import KernelSize, convolution
from archlab.config.components.work import Operation, Pass


class ShortConv(Mixer):
    """Gated short convolution: W (C * conv(B * x)), a convolution over a few tokens between two gates B and C that
    depend on the input (LFM2)."""

    kind: Literal["short_conv"] = "short_conv"
    display_name: ClassVar[str] = "short conv"
    taps: KernelSize = 3
    """Kernel size of the convolution: the number of tokens that it sees, including the current token."""
    bias: bool = False
    """Whether all projections and the convolution have biases."""

    def describe(self) -> dict[str, str]:
        return {"mixer": f"{self.kind} of {self.taps}"}

    def parameters(self, site: Site) -> dict[str, int]:
        return {"mixer": self.in_projections(site) + self.vectors(site)}

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "convolution", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        d, width = site.d_model, self.channels(site.d_model)
        inputs = {name: ProjectionShape(d, width) for name in ("x", "input_gate", "output_gate")}
        return {**inputs, "out": ProjectionShape(width, d, "mixed")}

    def vectors(self, site: Site) -> int:
        width = self.channels(site.d_model)
        return width * (4 * self.bias + self.taps) + site.d_model * self.bias

    def channels(self, d_model: int) -> int:
        return d_model

    def share(self, tensor: int) -> "ShortConv":
        return ShortConvShare.model_construct(**dict(self), n_devices=tensor)

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        d = site.d_model
        (conv,) = self.state(site, 0)
        yield model_pass.product("mixer", d, 3 * d, bias=3 * d * self.bias)
        yield model_pass.element_wise("element-wise", "mixer", d, flops=1, read=2, saved=2)
        yield convolution(model_pass, d, self.taps, conv, bias=self.bias)
        yield model_pass.element_wise("element-wise", "mixer", d, flops=1, read=2, saved=2)
        yield model_pass.product("mixer", d, d, bias=d * self.bias)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        return (StateTensor("conv", (self.taps - 1, site.d_model)),)


class ShortConvShare(ShortConv):
    """Part of a short convolution that one device computes if several devices divide the channels among them."""

    n_devices: int
    """Number of devices that divide the channels among them."""

    def channels(self, d_model: int) -> int:
        """Return the number of channels on this device. Raise UserError if the channels cannot be divided evenly."""
        return divide_evenly(d_model, self.n_devices, "channels of the mixer")
