"""Settings of low-rank adaptation (LoRA)."""

from typing import Annotated

from pydantic import Field

from archlab.config.core.base import Positive, Probability, Settings


class Lora(Settings):
    """Low-rank adaptation (LoRA, Hu 2021, arXiv 2106.09685). Trained weights W stay as they are. Training learns two
    small matrices A and B for each, and the model computes with W + (alpha / rank) B A."""

    rank: Annotated[int, Field(ge=1, le=2**16)] = 8
    """Rank of the change: number of rows of A and of columns of B."""
    alpha: Positive = 16.0
    """Numerator of the scale alpha / rank of the change."""
    modules: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Projections that LoRA changes, by their names in a layer: [q, v] as in Hu 2021, [attention], or
    [attention.q, mlp.down]. null: all projections of all layers. Embeddings, head, norms, routers and stacked matrices
    of experts never change."""
    dropout: Probability = 0.0
    """Probability with which an element of the input of A is dropped in training."""

    def changes(self, path: str) -> bool:
        """Return whether LoRA changes the projection with this path in its layer, such as `attention.q`."""
        return self.modules is None or any(fits(name, path) for name in self.modules)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def fits(name: str, path: str) -> bool:
    """Return whether a name means a projection: `q`, `attention` and `attention.q` mean `attention.q`."""
    return f".{name}." in f".{path}."
