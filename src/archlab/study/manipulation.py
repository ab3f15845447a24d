"""Manipulation checks of a study: conditions without which its runs cannot answer its question."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from archlab.study.formatting import amount, with_unit
from archlab.study.record import Heading
from archlab.study.schema import ManipulationCheck


class Unmet(NamedTuple):
    """A check that the runs of a study do not meet."""

    check: ManipulationCheck
    text: str
    """Sentences that say what was found, what the check requires, and why."""

    def concerns(self, outcome: str, arm: str) -> bool:
        """Return whether this arm's or contrast's result for this outcome needs the check."""
        decides, arms = self.check.decides, self.check.arms
        return (not decides or outcome in decides) and (not arms or arm in arms)


Measured = Callable[[str | None, str], tuple[Heading, float | None] | None]
"""Function from the names of an outcome (None: the primary one) and of an arm to the outcome's heading and the arm's
mean. The mean is None if all runs diverged. The result is None if the arm was not run."""


def unmet(checks: Iterable[ManipulationCheck], labels: Mapping[str, str], measured: Measured) -> Iterator[Unmet]:
    """Yield the checks that the runs of a study do not meet. Checks of arms that were not run are left out. `labels`
    maps the names of arms to their labels."""
    for check in checks:
        if (found := measured(check.outcome, check.arm)) is None:
            continue
        (heading, mean), bound = found, check.at_least if check.at_most is None else check.at_most
        assert bound is not None
        if mean is None or (mean > bound if check.at_most is not None else mean < bound):
            value = "all runs diverged" if mean is None else _amount(mean, heading)
            limit = f"at {'least' if check.at_most is None else 'most'} {_amount(bound, heading)}"
            arm = labels.get(check.arm, check.arm)
            yield Unmet(check, f"{heading.title}, {arm}: {value}; required: {limit}. {check.because}")


def _amount(value: float, heading: Heading) -> str:
    return with_unit(amount(value, heading.unit), heading.unit)
