"""Which outcomes a study has, by name, the one that its answer is about first."""

from collections.abc import Iterator, Sequence

from archlab.config.problems import Problem, raise_problems
from archlab.config.tasks import AnyTask
from archlab.study.design import Arm
from archlab.study.outcome_schema import (
    Accuracy,
    Answers,
    BestLoss,
    BestRate,
    Beyond,
    BitsPerByte,
    OnTheWay,
    Outcome,
    Probe,
    Sensitivity,
    StateBytes,
    TokensPerByte,
    TokensTo,
    WindowPart,
)
from archlab.study.schema import StudyConfig

_OF_TEXT = (BitsPerByte, TokensTo, OnTheWay, WindowPart, Beyond, TokensPerByte, Sensitivity, BestLoss, BestRate)
"""Outcomes that a task does not have."""


def named_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> dict[str, Outcome]:
    """Name -> outcome. ConfigError for one that the study's text or task does not have."""
    is_task = isinstance(arms[0].config.data.task, AnyTask)
    always = Accuracy() if is_task else BitsPerByte()
    named: dict[str, Outcome] = {always.kind: always, **study.measure}
    probed = all(arm.config.train.probe_every for arm in arms)
    raise_problems([*_problems(named, is_task), *([] if probed else _without_probes(named))], "the study")
    context = min(arm.config.model.max_seq_len for arm in arms)
    named = {name: _with_context(outcome, context) for name, outcome in named.items()}
    first = study.primary or always.kind
    return {first: named[first], **named}


def _problems(named: dict[str, Outcome], is_task: bool) -> Iterator[Problem]:
    for name, outcome in named.items():
        if is_task and isinstance(outcome, _OF_TEXT):
            yield Problem(
                f"measure.{name}", f"{outcome.title}: a task has no bytes of text; allowed: accuracy and answers"
            )
        if not is_task and isinstance(outcome, Answers):
            yield Problem(f"measure.{name}", "is of runs that learn a task; allowed where `set` has a data.task")
        if not is_task and isinstance(outcome, Accuracy):
            yield Problem(f"measure.{name}", "text has no answers; allowed where `set` has a data.task")


def _without_probes(named: dict[str, Outcome]) -> Iterator[Problem]:
    for name, outcome in named.items():
        if isinstance(outcome, Probe):
            yield Problem(f"measure.{name}", "nothing is probed; say in `set` train.probe_every, for all arms")


def _with_context(outcome: Outcome, context: int) -> Outcome:
    if isinstance(outcome, StateBytes) and outcome.context is None:
        return outcome.model_copy(update={"context": context})
    return outcome
