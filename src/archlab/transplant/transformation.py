"""Changes of trained weights: what they change, and what they promise."""

from collections.abc import Callable
from dataclasses import dataclass

from archlab.transplant.weights import Change, Effect, Errors, Target, Weights, no_errors


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Change of trained weights that some fields of the config ask for, as `archlab list transformations` shows it."""

    name: str
    effect: Effect
    """Usual effect of the change. In some models it is another one, for example in a post-norm model."""
    fields: tuple[str, ...]
    """Fields of the config that ask for the change. `*` stands for any text."""
    rule: str
    """Rule for the new weights or for the new use of the weights, in one or two sentences."""
    exact_in: str = ""
    """Texts in which the logits stay the same, in words. Empty if the effect is the same in all texts."""
    paper: str = ""
    """Source, such as `Ainslie 2023, arXiv 2305.13245`. Empty if there is none."""

    def change(self, detail: str, effect: Effect | None = None, errors: Callable[[], Errors] = no_errors) -> Change:
        """Return one change of this kind, with its places and numbers as the detail."""
        return Change(self.name, effect or self.effect, detail, errors)


@dataclass(frozen=True, kw_only=True)
class Transformation(Entry):
    """Change of trained weights that computes tensors, leaves tensors out, or puts them in other places."""

    apply: Callable[[Weights, Target], Weights]
    """Function that returns weights that are closer to the target, or the same object if nothing has to change. It
    raises UserError, with the field, for a change of these fields that it cannot make."""
