"""Outcomes by which a study compares its arms: those of `measure`, and the default one."""

from collections.abc import Sequence

from archlab.config.objective import ever_hides_tokens, score_meaning
from archlab.config.tasks import Task
from archlab.study.arm import Arm
from archlab.study.outcomes.kinds import Accuracy, BitsPerByte, DenoisingLoss, StateBytes
from archlab.study.outcomes.schema import Outcome
from archlab.study.schema import StudyConfig

DEFAULTS = ("bits_per_byte", "accuracy", "denoising_loss")
"""Names of the outcomes that every run of a study has, one of them for each kind of score."""


def scores_mean_the_same(arms: Sequence[Arm]) -> bool:
    """Return whether the objectives of all arms are scored on the same tokens, given the same tokens. If they are not,
    only outcomes that are shared by all objectives compare the arms."""
    first, *others = (score_meaning(arm.config.train.objective) for arm in arms)
    return all(meaning == first for meaning in others)


def default_outcome(arms: Sequence[Arm]) -> Accuracy | BitsPerByte | DenoisingLoss | None:
    """Return the outcome by which a study compares its arms unless its file names another one. Return None if the
    scores of the arms mean different things."""
    config = arms[0].config
    if not scores_mean_the_same(arms):
        return None
    if ever_hides_tokens(config.train.objective):
        return DenoisingLoss()
    return Accuracy() if isinstance(config.data.task, Task) else BitsPerByte()


def outcomes_of(study: StudyConfig, arms: Sequence[Arm]) -> dict[str, Outcome]:
    """Return the outcomes by name, starting with the primary outcome. Unless the study names it, the primary outcome is
    the default outcome or, without one, the first measured outcome."""
    default = default_outcome(arms)
    context = min(arm.config.model.max_seq_len for arm in arms)
    measured = {default.kind: default, **study.measure} if default else study.measure
    outcomes = {name: _with_context(outcome, context) for name, outcome in measured.items()}
    tested = (name for name, outcome in outcomes.items() if outcome.source != "config")
    primary = study.primary if study.primary in outcomes else next(tested)
    return {primary: outcomes[primary], **outcomes}


def _with_context(outcome: Outcome, context: int) -> Outcome:
    if isinstance(outcome, StateBytes) and outcome.context is None:
        return outcome.model_copy(update={"context": context})
    return outcome
