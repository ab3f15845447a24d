"""Checks of a study's fields: every named arm and outcome exists, and no arm sets a field that must be the same for all
arms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from archlab.config.core.merge import Raw, expand
from archlab.config.core.old_form import from_old_path
from archlab.config.core.registry import kinds
from archlab.config.identity import flatten
from archlab.config.notes import untrained_router
from archlab.config.objective import Objective, ever_continues_text, ever_hides_tokens, score_meaning
from archlab.config.problems import Problem, choose, is_under
from archlab.config.tasks import Task
from archlab.config.tasks.transduction import Transduction
from archlab.data.open import form_of_data
from archlab.errors import UserError
from archlab.study.arm import Arm, name_at_size, overrides_of_arms, section_of
from archlab.study.comparisons import comparisons
from archlab.study.formatting import listed
from archlab.study.outcomes.chosen import DEFAULTS, outcomes_of, scores_mean_the_same
from archlab.study.outcomes.kinds import (
    Accuracy,
    AnyAnswers,
    BestLoss,
    BestRate,
    Beyond,
    BitsPerByte,
    Continuation,
    DenoisingAccuracy,
    DenoisingLoss,
    LinearProbe,
    OnTheWay,
    Probe,
    Repetition,
    Sensitivity,
    TokensPerByte,
    TokensTo,
    WindowPart,
)
from archlab.study.outcomes.schema import Outcome
from archlab.study.record import COLUMNS
from archlab.study.schema import StartTraining, StudyConfig

DECIDED_BY = {
    "train.tokens": "budget",
    "train.seed": "seeds",
    "data.fold": "folds",
    "data.excluded_folds": "folds",
    "plugins": "plugins",
}
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
    names_at_sizes = [name_at_size(arm, size) for arm in arms for size in study.sizes]
    for section, known in (("tuned", [*arms, *names_at_sizes]), ("labels", arms)):
        for name in getattr(study, section):
            if name not in known:
                yield Problem(f"{section}.{name}", f"unknown arm{choose(name, list(arms))}")
    if isinstance(study.start, StartTraining):
        yield from _decided_elsewhere("start.set", study.start.set)
        if study.sizes:
            yield Problem("start", "a training of one base, but the study has `sizes`; remove one of the two")
    yield from _references(study, list(arms))
    yield from _factors(study)
    yield from _not_tunable("tune", study.tune)
    yield from _not_tunable("sweep", study.sweep)
    yield from _outcomes(study)
    yield from _manipulation_checks(study, list(arms))
    for name, values in study.tuned.items():
        yield from _not_tunable(f"tuned.{name}", values)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", f"{study.seed_list} contains a seed twice; list each seed once")
    yield from _decided_elsewhere("set", study.set)
    for name, overrides in arms.items():
        yield from _fields_of_an_arm(section_of(study, name), overrides, study)
    for name, overrides in study.at_size.items():
        if study.cross or not study.sizes:
            yield Problem(f"at_size.{name}", "has no effect; it needs `arms` and `sizes`")
        elif name not in names_at_sizes:
            yield Problem(f"at_size.{name}", f"unknown arm{choose(name, names_at_sizes)}")
        yield from _fields_of_an_arm(f"at_size.{name}", overrides, study)


def _fields_of_an_arm(section: str, overrides: Raw, study: StudyConfig) -> Iterator[Problem]:
    for field in overridden_fields(overrides):
        if is_under([field], list(study.tune)):
            yield Problem(f"{section}.{field}", "is also in `tune`, which tunes it for all arms; remove one of the two")
        if is_under([field], list(study.sweep)):
            yield Problem(
                f"{section}.{field}", "is also in `sweep`, which sweeps it for all arms; remove one of the two"
            )
        if field in DECIDED_BY:
            yield Problem(f"{section}.{field}", _decided_message(field))
        if is_under([field], SAME_FOR_ALL):
            yield Problem(f"{section}.{field}", "must be the same for all arms; move it to `set`")


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
        for other in study.cross:
            if other != field and is_under([field], [other]):
                yield Problem(f"cross.{field}", f"overlaps with {other}, which is also crossed; remove one of the two")


def _outcomes(study: StudyConfig) -> Iterator[Problem]:
    names = [*DEFAULTS, *study.measure]
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


def _manipulation_checks(study: StudyConfig, arms: Sequence[str]) -> Iterator[Problem]:
    outcomes = [*DEFAULTS, *study.measure]
    names = [name_at_size(arm, size) for arm in arms for size in study.sizes] or arms
    for index, check in enumerate(study.checks):
        if check.arm not in names:
            yield Problem(f"checks.{index}.arm", f"unknown arm {check.arm!r}{choose(check.arm, names)}")
        for name in (*([check.outcome] if check.outcome else []), *check.decides):
            if name not in outcomes:
                yield Problem(f"checks.{index}", f"unknown outcome {name!r}{choose(name, outcomes)}")


def unknown_comparisons(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield the names in `arms` of the study's checks that are not comparisons of these arms."""
    names = [*comparisons(arms)]
    for index, check in enumerate(study.checks):
        for name in check.arms:
            if name not in names:
                yield Problem(f"checks.{index}.arms", f"unknown comparison {name!r}{choose(name, names)}")


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
            verb = "swept" if section == "sweep" else "tuned"
            yield Problem(f"{section}.{field}", f"cannot be {verb}; allowed: {allowed}")


def _decided_elsewhere(section: str, overrides: Raw) -> Iterator[Problem]:
    for field in overridden_fields(overrides):
        if field in DECIDED_BY:
            yield Problem(f"{section}.{field}", _decided_message(field))


def _decided_message(field: str) -> str:
    return f"is set by the study's {DECIDED_BY[field]} for all arms; remove this setting"


_OWN_SCORES = (BitsPerByte, TokensTo, OnTheWay, WindowPart, Beyond, TokensPerByte, Sensitivity, BestLoss, BestRate)
"""Outcomes in bits per byte of the tokens that an objective predicts."""
_TEXT_OUTCOMES = (*_OWN_SCORES, Continuation)
_TASK_OUTCOMES = (Accuracy, AnyAnswers, LinearProbe)
_NEXT_TOKEN_OUTCOMES = (WindowPart, Beyond, Repetition)
"""Outcomes that predict each token of a text from the tokens before it."""
_WINDOW_OUTCOMES = (*_NEXT_TOKEN_OUTCOMES, Continuation)
"""Outcomes of a part of a window, or of text after it. A window of a pair has a source, a target and padding."""


def unfit_outcomes(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield a problem for each outcome that the study cannot measure: an outcome of text if the study has a task, an
    outcome of a task if it has text, or a probe without `train.probe_every`. If the scores of the arms mean different
    things, also yield a problem for each outcome that cannot compare them."""
    if not arms:
        return
    incomparable = list[str]()
    if not scores_mean_the_same(arms):
        shared = [name for name, outcome in study.measure.items() if outcome.is_shared and outcome.source != "config"]
        if not shared:
            yield _other_scores(arms)
            return
        incomparable = [name for name, outcome in study.measure.items() if not outcome.is_shared]
        for name in incomparable:
            yield Problem(
                f"measure.{name}",
                "means different things for these arms, because their objectives predict other tokens; "
                f"allowed: {', '.join(_shared_kinds(arms))}, or an outcome that is timed or computed from the config",
            )
    outcomes = outcomes_of(study, arms)
    if study.primary in DEFAULTS and study.primary not in outcomes:
        yield Problem(
            "primary", f"{study.primary!r} is not measured in this study{choose(study.primary, list(outcomes))}"
        )
    for name, outcome in outcomes.items():
        if name not in incomparable:
            yield from _misfits(f"measure.{name}", outcome, arms)


def arm_notes(outcomes: Iterable[Outcome], arms: Sequence[Arm]) -> list[str]:
    """Return notes on arms whose router is not trained, or whose objective does not train the continuations that are
    scored."""
    found = [(arm, text) for arm in arms for text in untrained_router(arm.config)]
    if any(isinstance(outcome, Continuation) for outcome in outcomes):
        found += [(arm, text) for arm in arms for text in _untrained_continuations(arm.config.train.objective)]
    return [f"{arm.label}: {text}" for arm, text in found]


def _untrained_continuations(objective: Objective) -> list[str]:
    if ever_continues_text(objective):
        return []
    return [
        f"train.objective.kind={objective.kind} does not train the model to continue a text, so its continuations show "
        "what it does without such training"
    ]


def _other_scores(arms: Sequence[Arm]) -> Problem:
    first, *others = (arm.name for arm in arms if arm is arms[0] or not scores_mean_the_same([arms[0], arm]))
    predict = f"{listed(others)} {'predicts' if len(others) == 1 else 'predict'}"
    return Problem(
        "measure",
        f"{predict} other tokens than {first}, so their scores mean different things; allowed: an outcome for any "
        f"objective ({', '.join(_shared_kinds(arms))}), or arms whose objectives predict the same tokens",
    )


def _shared_kinds(arms: Sequence[Arm]) -> list[str]:
    needs_task = isinstance(arms[0].config.data.task, Task)
    return [
        name
        for name, kind in kinds(Outcome).items()
        if kind.any_objective and not issubclass(kind, _TEXT_OUTCOMES if needs_task else _TASK_OUTCOMES)
    ]


def _misfits(field: str, outcome: Outcome, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield a problem for each reason why the outcome cannot be measured. `field` is its field in the study's file."""
    objectives = [arm.config.train.objective for arm in arms]
    is_task = isinstance(arms[0].config.data.task, Task)
    hide_tokens = any(ever_hides_tokens(objective) for objective in objectives)
    two_sided = [objective.kind for objective in objectives if objective.visibility == "two_sided"]
    needs_pairs = any(objective.needs_pairs for objective in objectives)
    predict_next = all(score_meaning(objective)["kind"] == "next_token" for objective in objectives)
    if isinstance(outcome, Continuation) and two_sided:
        fit = ", ".join(name for name, kind in kinds(Objective).items() if kind.visibility != "two_sided")
        yield Problem(
            field,
            f"continues a text, but a model trained with {two_sided[0]} reads tokens on both sides; allowed: {fit}",
        )
    elif (
        isinstance(outcome, _WINDOW_OUTCOMES) and not is_task and (form := form_of_data(arms[0].config.data)) != "text"
    ):
        allowed = "bits_per_byte, or data of plain text"
        yield Problem(field, f"needs text without {form}, but the data consists of {form}; allowed: {allowed}")
    elif isinstance(outcome, _OWN_SCORES) and hide_tokens:
        yield Problem(
            field, "needs bits per byte, but train.objective hides tokens; allowed: denoising_loss, denoising_accuracy"
        )
    elif isinstance(outcome, _NEXT_TOKEN_OUTCOMES) and (needs_pairs or not predict_next):
        yield Problem(field, "predicts every token of a text; allowed: train.objective.kind=next_token")
    if isinstance(outcome, DenoisingLoss | DenoisingAccuracy) and not hide_tokens:
        allowed = ", ".join(kind for kind, objective in kinds(Objective).items() if objective.hides_tokens)
        yield Problem(field, f"needs an objective that hides tokens; allowed: {allowed}")
    if is_task and isinstance(outcome, _TEXT_OUTCOMES):
        yield Problem(field, "needs text, but the study has a task; allowed: accuracy, answers, whole_answers")
    if not is_task and isinstance(outcome, AnyAnswers | LinearProbe):
        yield Problem(field, "needs a task; add data.task to `set`")
    if isinstance(outcome, AnyAnswers) and needs_pairs and not isinstance(outcome.task, Transduction):
        problem = f"{outcome.task.kind} has no pairs of a source and a target, which train.objective needs"
        yield Problem(f"{field}.task.kind", f"{problem}; allowed: {', '.join(kinds(Transduction))}")
    if not is_task and isinstance(outcome, Accuracy):
        yield Problem(field, "needs a task, because text has no answers; add data.task to `set`")
    if isinstance(outcome, Accuracy) and hide_tokens:
        yield Problem(field, "needs an objective that predicts all answers; allowed: denoising_accuracy")
    if isinstance(outcome, Probe) and not all(arm.config.train.probe_every for arm in arms):
        yield Problem(field, "needs probes; add train.probe_every to `set`, for all arms")
    without = next((arm.name for arm in arms if arm.config.model.encoder is None), None)
    if without and isinstance(outcome, Probe) and outcome.needs_encoder:
        allowed = f"measures of one stack, such as {outcome.of.rpartition('.')[2]}"
        yield Problem(f"{field}.of", f"{outcome.of} needs an encoder, but {without} has none; allowed: {allowed}")
