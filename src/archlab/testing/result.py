"""Result of a comparison of hand-written code with archlab."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from archlab.displayed import Written
from archlab.testing import Part
from archlab.testing.planting import Mistake

Status = Literal["equal", "differs", "note", "not checked"]


class Check(NamedTuple):
    """Result of one check."""

    name: str
    status: Status
    words: str
    """Finding in words, or the reason why the check does not apply."""


@dataclass(frozen=True, repr=False)
class Comparison(Written):
    """Hand-written code compared with archlab's."""

    part: Part
    target: str
    """Name of the hand-written code."""
    parameters: Mapping[str, tuple[str, ...]]
    """Names of archlab's parameters, by the name of the hand-written parameter that holds them."""
    checks: tuple[Check, ...]
    mistakes: tuple[Mistake, ...]
    """Known mistakes that together give exactly the output of the code. Empty if it is right, or wrong in another
    way."""
    tries_pairs: bool
    """Whether pairs of known mistakes are tried if no single one explains the output."""

    @property
    def equal(self) -> bool:
        """Whether no check found a difference."""
        return all(check.status != "differs" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        return {
            "part": self.part,
            "target": self.target,
            "equal": self.equal,
            "mistakes": [{"name": mistake.name, "words": mistake.words} for mistake in self.mistakes],
            "checks": [check._asdict() for check in self.checks],
            "parameters": {name: list(names) for name, names in self.parameters.items()},
        }

    def text(self) -> str:
        """Return the report as text, as `archlab verify` prints it."""
        differs = any(check.name == "outputs" and check.status == "differs" for check in self.checks)
        lines = [f"{self.target} {'equals' if self.equal else 'differs from'} archlab's {self.part}"]
        lines += [f"  {check.name:<18} {check.status:<12} {check.words}" for check in self.checks]
        if self.mistakes:
            lines += ["This mistake gives exactly your output:" if len(self.mistakes) == 1 else _TOGETHER]
            lines += [f"  {mistake.words}" for mistake in self.mistakes]
        elif differs:
            lines += ["No known mistake gives this output."]
            lines += [] if self.tries_pairs else [_WITHOUT_PAIRS]
        return "\n".join(lines)


_WITHOUT_PAIRS = (
    "Pairs of mistakes were not tried: archlab tries them in a part of a model, with at most 200,000 parameters.\n"
    "Compare a smaller part, or use small widths, as in model.d_model=64 model.mlp.d_ff=128."
)
_TOGETHER = "These two mistakes together give exactly your output:"
