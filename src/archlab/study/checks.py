"""Checks of a study's fields: every named arm and outcome exists, and no arm sets a field that must be the same for all
arms."""

from collections.abc import Iterator, Mapping, Sequence

from archlab.config.core.merge import Raw, expand
from archlab.config.core.old_form import from_old_path
from archlab.config.core.registry import kinds
from archlab.config.identity import flatten
from archlab.config.objective import Objective, score_meaning
from archlab.config.problems import Problem, choose, is_under
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.errors import UserError
from archlab.study.arm import Arm, name_at_size, overrides_of_arms, section_of
from archlab.study.outcome_schema import (
    Accuracy,
    AnyAnswers,
    BestLoss,
    BestRate,
    Beyond,
    BitsPerByte,
    DenoisingAccuracy,
    DenoisingLoss,
    OnTheWay,
    Outcome,
    Probe,
    Repetition,
    Sensitivity,
    StateBytes,
    TokensPerByte,
    TokensTo,
    WindowPart,
)
from archlab.study.record import COLUMNS
from archlab.study.schema import StudyConfig

DECIDED_BY = {"train.tokens": "budget", "train.seed": "seeds", "data.fold": "folds", "plugins": "plugins"}
"""Config fields that the study sets for all arms. Each is mapped to the field of the study's file that decides its
value."""

SAME_FOR_ALL = (
    "data", "train.eval_tokens", "train.eval_seq_len", "train.eval_every", "train.checkpoint_every",
    "train.probe_every", "train.device", "train.log", "train.spikes.window", "train.spikes.deviations",
)  # fmt: skip
"""Fields or sections of the config that must be the same in all arms, so that all arms are evaluated on the same text
in the same way."""

_NOT_TUNABLE = (*SAME_FOR_ALL, *DECIDED_BY, "train.seq_len")


def field_problems(study: StudyConfig) -> Iterator[Problem]:
    """Yield the problems that can be found before the arms are built: unknown names, invalid references, and fields
    that cannot be set in their section."""
    arms = overrides_of_arms(study)
    for section in ("tuned", "labels"):
        for name in getattr(study, section):
            at_sizes = [name_at_size(arm, size) for arm in arms for size in study.sizes if section == "tuned"]
            if name not in (*arms, *at_sizes):
                yield Problem(f"{section}.{name}", f"unknown arm{choose(name, list(arms))}")
    yield from _references(study, list(arms))
    yield from _factors(study)
    yield from _not_tunable("tune", study.tune)
    yield from _not_tunable("sweep", study.sweep)
    yield from _outcomes(study)
    for name, values in study.tuned.items():
        yield from _not_tunable(f"tuned.{name}", values)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", f"{study.seed_list} contains a seed twice; list each seed once")
    yield from _decided_elsewhere("set", study.set)
    for name, overrides in arms.items():
        for field in overridden_fields(overrides):
            if is_under([field], list(study.tune)):
                yield Problem(
                    f"{section_of(study, name)}.{field}",
                    "is also in `tune`, which tunes it for all arms; remove one of the two",
                )
            if is_under([field], list(study.sweep)):
                yield Problem(
                    f"{section_of(study, name)}.{field}",
                    "is also in `sweep`, which sweeps it for all arms; remove one of the two",
                )
            if field in DECIDED_BY:
                yield Problem(f"{section_of(study, name)}.{field}", _decided_message(field))
            if is_under([field], SAME_FOR_ALL):
                message = "must be the same for all arms; move it to `set`"
                yield Problem(f"{section_of(study, name)}.{field}", message)


def _references(study: StudyConfig, arms: Sequence[str]) -> Iterator[Problem]:
    against = study.against if isinstance(study.against, dict) else {}
    for arm, reference in against.items():
        if arm not in arms:
            yield Problem(f"against.{arm}", f"unknown arm{choose(arm, arms)}")
        elif arm == arms[0]:
            yield Problem(
                f"against.{arm}", "the first arm has no reference; remove this entry, or put another arm first"
            )
        elif reference not in arms:
            yield Problem(f"against.{arm}", f"unknown arm {reference!r}{choose(reference, arms)}")
        elif arm == min(circle := _circle(arm, against), default=None):
            cycle = " -> ".join([*circle, arm])
            yield Problem(f"against.{arm}", f"the references form a cycle: {cycle}; change one of them")


def _circle(arm: str, against: Mapping[str, str]) -> list[str]:
    chain = [arm]
    while (reference := against.get(chain[-1])) is not None:
        if reference == arm:
            return chain
        if reference in chain:
            break
        chain.append(reference)
    return []


def _factors(study: StudyConfig) -> Iterator[Problem]:
    for field, levels in study.cross.items():
        for repeated in [level for i, level in enumerate(levels) if level in levels[:i]][:1]:
            yield Problem(f"cross.{field}", f"{levels} contains {repeated!r} twice; list each value once")
        if is_under([field], [other for other in study.cross if other != field]):
            yield Problem(f"cross.{field}", "overlaps with another factor; give separate fields")


def _outcomes(study: StudyConfig) -> Iterator[Problem]:
    names = [*_DEFAULTS, *study.measure]
    if study.primary is not None and study.primary not in names:
        yield Problem("primary", f"unknown outcome {study.primary!r}{choose(study.primary, names)}")
    if study.primary in study.measure and study.measure[study.primary].source == "config":
        yield Problem(
            "primary",
            f"{study.primary} is computed from the config, so it has no statistical test; name a measured outcome",
        )
    for name, outcome in study.measure.items():
        if name in COLUMNS or name in study.cross:
            yield Problem(f"measure.{name}", "is already a column of runs.csv; choose another name")
        elif name in kinds(Outcome) and name != getattr(outcome, "kind", name):
            yield Problem(
                f"measure.{name}",
                f"{name} is a kind of outcome, but `kind` is different; choose another name, or set kind: {name}",
            )
    swept = [name for name, outcome in study.measure.items() if outcome.source == "sweep"]
    for name in swept if not study.sweep else ():
        yield Problem(f"measure.{name}", "needs a sweep; add `sweep` with the learning rates to try")
    if len(study.sweep) > 1:
        yield Problem("sweep", f"has {len(study.sweep)} fields; give one")
    for field in study.sweep if study.sweep and not swept else ():
        yield Problem(
            f"sweep.{field}", "no outcome uses this sweep; add sensitivity, best_loss or best_rate to `measure`"
        )


def overridden_fields(overrides: Raw) -> list[str]:
    """Return the dotted names of the fields that `overrides` sets. Return an empty list if the overrides contradict
    each other."""
    try:
        return [from_old_path(path) for path in flatten(expand(overrides))]
    except UserError:
        return []


def _not_tunable(section: str, values: Raw) -> Iterator[Problem]:
    allowed = "fields of train, except those that change the text or the evaluation"
    for field in values:
        if not field.startswith("train.") or field in _NOT_TUNABLE:
            yield Problem(f"{section}.{field}", f"cannot be tuned; allowed: {allowed}")


def _decided_elsewhere(section: str, overrides: Raw) -> Iterator[Problem]:
    for field in overridden_fields(overrides):
        if field in DECIDED_BY:
            yield Problem(f"{section}.{field}", _decided_message(field))


def _decided_message(field: str) -> str:
    return f"is set by the study's {DECIDED_BY[field]} for all arms; remove this setting"


_TEXT_OUTCOMES = (BitsPerByte, TokensTo, OnTheWay, WindowPart, Beyond, TokensPerByte, Sensitivity, BestLoss, BestRate)
_NEXT_TOKEN_OUTCOMES = (WindowPart, Beyond, Repetition)
"""Outcomes that predict each token of a text from the tokens before it."""


def unfit_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield a problem for each outcome that the study cannot measure: an outcome of text if the study has a task, an
    outcome of a task if it has text, or a probe without `train.probe_every`. Also yield a problem for each arm whose
    score means something else than that of the first arm."""
    if not arms:
        return
    for arm in arms[1:]:
        if score_meaning(arm.config.train.objective) != score_meaning(arms[0].config.train.objective):
            yield Problem(
                f"{section_of(study, arm.name)}.train.objective",
                f"{arm.name} predicts other tokens than {arms[0].name}, so their scores mean different things; "
                "allowed: objectives that differ only in the loss",
            )
    is_task = isinstance(arms[0].config.data.task, Task)
    denoises = arms[0].config.train.objective.hides_tokens
    needs_pairs = any(arm.config.train.objective.needs_pairs for arm in arms)
    predicts_next = score_meaning(arms[0].config.train.objective)["kind"] == "next_token" and not needs_pairs
    is_probed = all(arm.config.train.probe_every for arm in arms)
    named = named_outcomes(study, arms)
    if study.primary in _DEFAULTS and study.primary not in named:
        yield Problem("primary", f"{study.primary!r} is not measured in this study{choose(study.primary, list(named))}")
    for name, outcome in named.items():
        if denoises and isinstance(outcome, _TEXT_OUTCOMES):
            allowed = "denoising_loss, denoising_accuracy"
            yield Problem(
                f"measure.{name}", f"needs bits per byte, but train.objective hides tokens; allowed: {allowed}"
            )
        elif not predicts_next and isinstance(outcome, _NEXT_TOKEN_OUTCOMES):
            yield Problem(f"measure.{name}", "predicts every token of a text; allowed: train.objective.kind=next_token")
        if not denoises and isinstance(outcome, DenoisingLoss | DenoisingAccuracy):
            allowed = ", ".join(kind for kind, objective in kinds(Objective).items() if objective.denoises)
            yield Problem(f"measure.{name}", f"needs an objective that hides tokens; allowed: {allowed}")
        if is_task and isinstance(outcome, _TEXT_OUTCOMES):
            yield Problem(
                f"measure.{name}", "needs text, but the study has a task; allowed: accuracy, answers, whole_answers"
            )
        if not is_task and isinstance(outcome, AnyAnswers):
            yield Problem(f"measure.{name}", "needs a task; add data.task to `set`")
        if needs_pairs and isinstance(outcome, AnyAnswers) and not isinstance(outcome.task, Transduction):
            allowed = ", ".join(kinds(Transduction))
            problem = f"{outcome.task.kind} has no pairs of a source and a target, which train.objective needs"
            yield Problem(f"measure.{name}.task.kind", f"{problem}; allowed: {allowed}")
        if not is_task and isinstance(outcome, Accuracy):
            yield Problem(f"measure.{name}", "needs a task, because text has no answers; add data.task to `set`")
        if not is_probed and isinstance(outcome, Probe):
            yield Problem(f"measure.{name}", "needs probes; add train.probe_every to `set`, for all arms")
        without = next((arm.name for arm in arms if arm.config.model.encoder is None), None)
        if without and isinstance(outcome, Probe) and outcome.needs_encoder:
            allowed = f"measures of one stack, such as {outcome.of.rpartition('.')[2]}"
            yield Problem(
                f"measure.{name}.of", f"{outcome.of} needs an encoder, but {without} has none; allowed: {allowed}"
            )


_DEFAULTS = ("bits_per_byte", "accuracy", "denoising_loss")
"""Names of the outcomes that every run of a study has, one of them for each kind of score."""


def default_outcome(arms: Sequence[Arm]) -> Accuracy | BitsPerByte | DenoisingLoss:
    """Return the outcome by which a study compares its arms unless its file names another one."""
    config = arms[0].config
    if config.train.objective.hides_tokens:
        return DenoisingLoss()
    return Accuracy() if isinstance(config.data.task, Task) else BitsPerByte()


def named_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> dict[str, Outcome]:
    """Return the outcomes by name, starting with the primary outcome."""
    default = default_outcome(arms)
    context = min(arm.config.model.max_seq_len for arm in arms)
    named = {
        name: _with_context(outcome, context) for name, outcome in {default.kind: default, **study.measure}.items()
    }
    primary = study.primary if study.primary in named else default.kind
    return {primary: named[primary], **named}


def _with_context(outcome: Outcome, context: int) -> Outcome:
    if isinstance(outcome, StateBytes) and outcome.context is None:
        return outcome.model_copy(update={"context": context})
    return outcome
