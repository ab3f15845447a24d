"""Checks of a study's fields: known names and outcomes, and no field that the study decides."""

from collections.abc import Iterator, Mapping, Sequence

from archlab.config.core.merge import Raw, expand
from archlab.config.core.old_form import from_old_path
from archlab.config.core.registry import kinds
from archlab.config.identity import flatten
from archlab.config.problems import Problem, choose, is_under
from archlab.config.tasks import Task
from archlab.errors import UserError
from archlab.study.arm import Arm, at_size, overrides_of_arms, section_of
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
from archlab.study.record import COLUMNS
from archlab.study.schema import StudyConfig

DECIDED_BY = {"train.tokens": "budget", "train.seed": "seeds", "data.fold": "folds", "plugins": "plugins"}
"""Fields that the study sets itself -> the part of the study that decides them."""

SAME_FOR_ALL = (
    "data", "train.eval_tokens", "train.eval_seq_len", "train.eval_every", "train.checkpoint_every",
    "train.probe_every", "train.device", "train.log", "train.spikes.window", "train.spikes.deviations",
)  # fmt: skip
"""Fields, or sections, in which arms cannot differ: all are evaluated on the same text in the same way."""

_NOT_TUNABLE = (*SAME_FOR_ALL, *DECIDED_BY, "train.seq_len")


def misplaced_fields(study: StudyConfig) -> Iterator[Problem]:
    """Every field and every name that stands where it must not."""
    arms = overrides_of_arms(study)
    for section in ("tuned", "labels"):
        for name in getattr(study, section):
            at_sizes = [at_size(arm, size) for arm in arms for size in study.sizes if section == "tuned"]
            if name not in (*arms, *at_sizes):
                yield Problem(f"{section}.{name}", f"no such arm{choose(name, list(arms))}")
    yield from _references(study, list(arms))
    yield from _factors(study)
    yield from _not_tunable("tune", study.tune)
    yield from _not_tunable("sweep", study.sweep)
    yield from _outcomes(study)
    for name, values in study.tuned.items():
        yield from _not_tunable(f"tuned.{name}", values)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", f"{study.seed_list} names a seed twice; a run counts once")
    yield from _decided_elsewhere("set", study.set)
    for name, overrides in arms.items():
        for field in overridden(overrides):
            if is_under([field], list(study.tune)):
                yield Problem(
                    f"{section_of(study, name)}.{field}", "is tuned, for all arms; leave it out here or there"
                )
            if is_under([field], list(study.sweep)):
                yield Problem(f"{section_of(study, name)}.{field}", "is swept for all arms; leave it out here or there")
            if field in DECIDED_BY:
                yield Problem(f"{section_of(study, name)}.{field}", _decided(field))
            if is_under([field], SAME_FOR_ALL):
                message = "arms are compared on the same text in the same way, so it belongs in `set`"
                yield Problem(f"{section_of(study, name)}.{field}", message)


def _references(study: StudyConfig, arms: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with a mapping of arms to the arms that they are compared with."""
    against = study.against if isinstance(study.against, dict) else {}
    for arm, reference in against.items():
        if arm not in arms:
            yield Problem(f"against.{arm}", f"no such arm{choose(arm, arms)}")
        elif arm == arms[0]:
            yield Problem(f"against.{arm}", "the first arm is compared with none; leave it out, or begin with another")
        elif reference not in arms:
            yield Problem(f"against.{arm}", f"{reference!r}; no such arm{choose(reference, arms)}")
        elif arm == min(circle := _circle(arm, against), default=None):
            yield Problem(f"against.{arm}", f"{' -> '.join([*circle, arm])} is a circle; allowed: any other arm")


def _circle(arm: str, against: Mapping[str, str]) -> list[str]:
    """The arms from which following the references leads back to this one, it first; none where it does not."""
    passed = [arm]
    while (reference := against.get(passed[-1])) is not None:
        if reference == arm:
            return passed
        if reference in passed:
            break
        passed.append(reference)
    return []


def _factors(study: StudyConfig) -> Iterator[Problem]:
    for field, levels in study.cross.items():
        for twice in [level for i, level in enumerate(levels) if level in levels[:i]][:1]:
            yield Problem(f"cross.{field}", f"{levels} names {twice!r} twice; an arm is compared once")
        if is_under([field], [other for other in study.cross if other != field]):
            yield Problem(f"cross.{field}", "lies in another factor, or another one in it; allowed: separate fields")


def _outcomes(study: StudyConfig) -> Iterator[Problem]:
    names = ["bits_per_byte", "accuracy", *study.measure]
    if study.primary is not None and study.primary not in names:
        yield Problem("primary", f"{study.primary!r}; no such outcome{choose(study.primary, names)}")
    if study.primary in study.measure and study.measure[study.primary].source == "config":
        yield Problem("primary", f"{study.primary} is counted, so there is nothing to test; allowed: what is measured")
    for name, outcome in study.measure.items():
        if name in COLUMNS or name in study.cross:
            yield Problem(f"measure.{name}", "is another column of runs.csv; allowed: any other name")
        elif name in kinds(Outcome) and name != getattr(outcome, "kind", name):
            yield Problem(f"measure.{name}", f"is the name of another kind of outcome; allowed: {name} of that kind")
    swept = [name for name, outcome in study.measure.items() if outcome.source == "sweep"]
    for name in swept if not study.sweep else ():
        yield Problem(f"measure.{name}", "is of a sweep; say in `sweep` which rates are tried")
    if len(study.sweep) > 1:
        yield Problem("sweep", f"{len(study.sweep)} fields; allowed: one")
    for field in study.sweep if study.sweep and not swept else ():
        yield Problem(
            f"sweep.{field}", "no outcome is of a sweep; allowed in `measure`: sensitivity, best_loss, best_rate"
        )


def overridden(overrides: Raw) -> list[str]:
    """The dotted fields that overrides set; none where the overrides contradict themselves."""
    try:
        return [from_old_path(path) for path in flatten(expand(overrides))]
    except UserError:
        return []


def _not_tunable(section: str, values: Raw) -> Iterator[Problem]:
    allowed = "fields of train that change how an arm learns, not what it is or how it is judged"
    for field in values:
        if not field.startswith("train.") or field in _NOT_TUNABLE:
            yield Problem(f"{section}.{field}", f"cannot be tuned; allowed: {allowed}")


def _decided_elsewhere(section: str, overrides: Raw) -> Iterator[Problem]:
    for field in overridden(overrides):
        if field in DECIDED_BY:
            yield Problem(f"{section}.{field}", _decided(field))


def _decided(field: str) -> str:
    return f"is decided by the study's {DECIDED_BY[field]}, for all arms; leave it out"


_OF_TEXT = (BitsPerByte, TokensTo, OnTheWay, WindowPart, Beyond, TokensPerByte, Sensitivity, BestLoss, BestRate)
"""Outcomes that a task does not have."""


def foreign_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Outcomes that the study's text or task does not have, and probes where nothing is probed."""
    if not arms:
        return
    is_task = isinstance(arms[0].config.data.task, Task)
    is_probed = all(arm.config.train.probe_every for arm in arms)
    named = named_outcomes(study, arms)
    if study.primary in ("bits_per_byte", "accuracy") and study.primary not in named:
        yield Problem("primary", f"{study.primary!r} is not measured here{choose(study.primary, list(named))}")
    for name, outcome in named.items():
        if is_task and isinstance(outcome, _OF_TEXT):
            yield Problem(
                f"measure.{name}", f"{outcome.title}: a task has no bytes of text; allowed: accuracy and answers"
            )
        if not is_task and isinstance(outcome, Answers):
            yield Problem(f"measure.{name}", "is of runs that learn a task; allowed where `set` has a data.task")
        if not is_task and isinstance(outcome, Accuracy):
            yield Problem(f"measure.{name}", "text has no answers; allowed where `set` has a data.task")
        if not is_probed and isinstance(outcome, Probe):
            yield Problem(f"measure.{name}", "nothing is probed; say in `set` train.probe_every, for all arms")


def named_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> dict[str, Outcome]:
    """Return name -> outcome, the primary one first."""
    always = Accuracy() if isinstance(arms[0].config.data.task, Task) else BitsPerByte()
    context = min(arm.config.model.max_seq_len for arm in arms)
    named = {name: _with_context(outcome, context) for name, outcome in {always.kind: always, **study.measure}.items()}
    first = study.primary if study.primary in named else always.kind
    return {first: named[first], **named}


def _with_context(outcome: Outcome, context: int) -> Outcome:
    if isinstance(outcome, StateBytes) and outcome.context is None:
        return outcome.model_copy(update={"context": context})
    return outcome
