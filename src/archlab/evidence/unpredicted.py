"""What the runs of a claim's studies compare although the claim predicts nothing of it. It decides no verdict."""

from collections.abc import Iterator, Mapping

from archlab.evidence.compared import Compared, compared
from archlab.evidence.results import Results, results_name
from archlab.evidence.schema import Claim


def unpredicted(claim: Claim, results: Mapping[str, Results], scale: str) -> Iterator[Compared]:
    """By the outcome that a study's answer is about, and by those of which the claim predicts something for others;
    none of what is counted. Where factors are crossed, their contrasts say what the arms do."""
    for study in claim.studies:
        if ran := results.get(results_name(study, scale)):
            answer = ran.heading(None).name
            predicted = [(one.outcome or answer, one.arm) for one in claim.expected if one.study == study]
            for outcome in dict.fromkeys([answer, *(outcome for outcome, _ in predicted)]):
                found = compared(ran, outcome).values()
                is_crossed = any(one.is_contrast for one in found)
                for one in found:
                    is_asked = (outcome, one.arm) not in predicted and one.is_contrast == is_crossed
                    if is_asked and not one.is_counted:
                        yield one


def is_difference(found: Compared) -> bool:
    """Whether one was found, whose side can be told."""
    differences = ("better", "worse", "differs", "diverged", "reference diverged")
    return found.has_sides and found.comparison is not None and found.comparison.verdict in differences
