"""The real-gated linear recurrent unit."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.component import Mixer, RoleName, Site, StateTensor, shared_out
from archlab.config.components.recurrent import KernelSize, convolution
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Width


class RGLRU(Mixer):
    """Channels that each forget at a rate that the input sets, between two projections and beside a gate (De 2024:
    Griffin).

    S <- a S + sqrt(1 - a^2) i u with a = exp(-8 r softplus(Lambda)) and two gates r, i = sigmoid(W u + b).
    """

    kind: Literal["rglru"] = "rglru"
    display_name: ClassVar[str] = "RG-LRU"
    lru_width: Derived[Width] = DERIVED
    """Channels, each with a state of one number. null: d_model."""
    n_heads: Heads = 1
    """Groups of neighbouring channels; a gate of a channel reads the channels of its group (RecurrentGemma: 256)."""
    taps: KernelSize = 4
    """Tokens that the convolution of u sees."""

    def resolve(self, d_model: int) -> Self:
        """Return the same unit with its number of channels written out."""
        return self.model_copy(update={"lru_width": self.lru_width or d_model})

    @property
    def _gates(self) -> int:
        """Numbers in both gates' matrices, whose blocks on the diagonal alone are there."""
        return 2 * self.lru_width * (self.lru_width // self.n_heads)

    def describe(self) -> dict[str, str]:
        """Channels and their groups."""
        return {"mixer": f"{self.kind} {self.n_heads}x{self.lru_width // self.n_heads}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections and gates with their biases, the convolution, and per channel its rate of forgetting."""
        return {"mixer": 3 * self.lru_width * site.d_model + self._gates + self.vectors(site)}

    def roles(self) -> tuple[RoleName, ...]:
        """Return the usual roles and `convolution`, that of its convolution."""
        return ("input", "convolution", "output")

    def vectors(self, site: Site) -> int:
        """Biases of projections, gates and the convolution, its kernel, and the rates."""
        return self.lru_width * (self.taps + 6) + site.d_model

    def share(self, tensor: int) -> Self:
        """Whole groups of channels."""
        n_heads = shared_out(self.n_heads, tensor, "groups of the mixer's channels")
        return self.model_copy(update={"n_heads": n_heads, "lru_width": self.lru_width // tensor})

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """The same in every counting: the scan itself has no products of matrices, but a run of sums for each doubling
        of the tokens."""
        width = self.lru_width
        conv, states = self.state(site, 0)
        yield this.product("mixer", site.d_model, 2 * width, bias=2 * width)
        yield convolution(this, width, self.taps, conv, bias=True)
        block = width // self.n_heads
        yield this.product("mixer", width, 2 * block, bias=2 * width)
        yield this.element_wise("element-wise", "mixer", width, flops=20, read=3, written=2, weights=width)
        doublings = max(1, math.ceil(math.log2(this.tokens)))
        summed = this.element_wise("element-wise", "mixer", doublings * width, flops=3, read=4, written=2)
        # In float32 nine numbers on the way from u to decays and what is added, three of every doubling.
        saved = (9 + 3 * doublings) * this.rows * width * FLOAT32_BYTES
        kept = this.texts * states.n_bytes(this.bytes_each) if this.is_cached else 0.0
        yield summed._replace(kept=kept, saved=saved)
        yield from this.activation("mixer", "gelu_tanh", width)
        yield this.element_wise("element-wise", "mixer", width, flops=1, read=2, saved=2)
        yield this.product("mixer", width, site.d_model, bias=site.d_model)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The convolution's last inputs, and a number per channel."""
        conv = StateTensor("conv", (self.taps - 1, self.lru_width))
        return conv, StateTensor("scan", (self.lru_width,), float32=True)
