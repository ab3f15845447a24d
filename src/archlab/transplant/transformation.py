"""A transformation of trained weights: what it changes, and what it promises."""

from collections.abc import Callable
from dataclasses import dataclass

from archlab.transplant.weights import Architecture, Effect, Step, Weights


@dataclass(frozen=True)
class Transformation:
    """Change of trained weights that some fields of the config ask for."""

    name: str
    effect: Effect
    """Effect that the transformation has in its usual form. A step may have another one, for example in a post-norm
    model."""
    fields: tuple[str, ...]
    """Fields of the config that ask for the transformation."""
    rule: str
    """Rule for the new weights, and the size of the change of the logits, in one or two sentences."""
    paper: str
    """Source, such as `Ainslie 2023, arXiv 2305.13245`."""
    apply: Callable[[Weights, Architecture], Weights]
    """Function that returns weights that are closer to the target, or the same object if nothing has to change. It
    raises UserError, with the field, for a change of these fields that it cannot make."""

    def step(self, detail: str, effect: Effect | None = None) -> Step:
        """Return a step of this transformation."""
        return Step(self.name, effect or self.effect, detail)
