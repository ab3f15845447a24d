"""The gated short convolution."""

from typing import Literal

from archlab.config.component import Component, Counting, Site, StateTensor
from archlab.config.recurrent import KernelSize


class ShortConv(Component):
    """W (C * conv(B * x)): a convolution over a few tokens between two gates B and C that the input sets (LFM2)."""

    kind: Literal["short_conv"] = "short_conv"  # pyright: ignore[reportIncompatibleVariableOverride]
    taps: KernelSize = 3
    """Tokens that the convolution sees."""
    bias: bool = False
    """Biases on all projections and on the convolution."""

    def describe(self) -> dict[str, str]:
        """The convolution's reach."""
        return {"mixer": f"{self.kind} of {self.taps}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections of x and of both gates, the convolution, the output projection."""
        return {"mixer": site.d_model * (4 * (site.d_model + self.bias) + self.taps + self.bias)}

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """The same in every counting."""
        return {"mixer": 2 * site.d_model * (4 * site.d_model + self.taps) * seq_len}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs."""
        return (StateTensor("conv", (self.taps - 1, site.d_model)),)
