"""Gather the values of an outcome from all runs and timings of a study."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from archlab.config.core.registry import implements, make
from archlab.config.schema import Config
from archlab.pricing.memory import state_bytes
from archlab.pricing.summary import cost
from archlab.pricing.work import matrix_flops_per_byte
from archlab.study.arm import Arm
from archlab.study.outcomes.kinds import Intensity, StateBytes
from archlab.study.outcomes.log import Swept, from_log, from_sweep
from archlab.study.outcomes.schema import Outcome
from archlab.study.outcomes.value import check_value
from archlab.study.runs import Ended
from archlab.study.stats import Values

Timed = Mapping[Outcome, Mapping[str, Values]]
"""Values of timed outcomes, by outcome, arm and round."""


class StudyRuns(NamedTuple):
    """All finished runs and timings of a study."""

    arms: Sequence[Arm]
    ended: Mapping[str, Mapping[int, Ended]]
    """Results of the compared runs, by arm and seed."""
    swept: Swept
    timed: Timed


def gather(outcome: Outcome, study_runs: StudyRuns) -> dict[str, Values]:
    """Return the outcome's values, by arm and by seed or round of timing. The value of a diverged run is None. A value
    that is missing for another reason is left out."""
    match outcome.source:
        case "log":
            return _values_of_runs(study_runs, lambda run: from_log(outcome, run))
        case "weights":
            return _values_of_runs(study_runs, lambda run: run.measured.get(outcome))
        case "sweep":
            swept = {arm.name: study_runs.swept.get(arm.name, {}) for arm in study_runs.arms}
            return {
                arm: {seed: from_sweep(outcome, runs) for seed, runs in seeds.items()} for arm, seeds in swept.items()
            }
        case "timing":
            timed = study_runs.timed.get(outcome, {})
            return {arm.name: _present(timed.get(arm.name, {})) for arm in study_runs.arms}
        case "config":
            return {arm.name: _present({0: make(outcome, arm.config, check=check_value)}) for arm in study_runs.arms}


def _present(values: Values) -> Values:
    return {key: value for key, value in values.items() if value is not None}


def _values_of_runs(study_runs: StudyRuns, value_of: Callable[[Ended], float | None]) -> dict[str, Values]:
    return {
        arm: {
            seed: value
            for seed, run in runs.items()
            if (value := value_of(run)) is not None or run.summary.status == "diverged"
        }
        for arm, runs in study_runs.ended.items()
    }


@implements(StateBytes)
def _state_bytes(outcome: StateBytes, config: Config) -> float:
    return float(state_bytes(config.model, outcome.context or 1))


@implements(Intensity)
def _intensity(outcome: Intensity, config: Config) -> float:
    return matrix_flops_per_byte(cost(config, outcome.batch, outcome.context).work["decoding"])
