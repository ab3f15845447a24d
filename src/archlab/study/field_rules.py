"""Which fields a study may set in which place: names that exist, and no field that the study itself decides."""

from collections.abc import Iterator

from archlab.config.identity import flatten
from archlab.config.merge import Raw, expand
from archlab.config.problems import Problem, choose, is_under
from archlab.config.study_schema import StudyConfig
from archlab.errors import UserError

DECIDED_BY = {"train.tokens": "budget", "train.seed": "seeds", "data.fold": "folds"}
"""Fields that the study sets itself -> the part of the study that decides them."""

SAME_FOR_ALL = (
    "data", "train.eval_tokens", "train.eval_seq_len", "train.eval_every", "train.checkpoint_every",
    "train.probe_every", "train.device",
)  # fmt: skip
"""Fields, or sections, in which arms cannot differ: all are evaluated on the same text in the same way."""

_NOT_TUNABLE = (*SAME_FOR_ALL, *DECIDED_BY, "train.seq_len")


def misplaced_fields(study: StudyConfig) -> Iterator[Problem]:
    """Every field and every name that stands where it must not."""
    for section in ("tuned", "labels"):
        for name in getattr(study, section):
            if name not in study.arms:
                yield Problem(f"{section}.{name}", f"no such arm{choose(name, list(study.arms))}")
    yield from _not_tunable("tune", study.tune)
    yield from _not_tunable("sweep", study.sweep)
    yield from _outcomes(study)
    for name, values in study.tuned.items():
        yield from _not_tunable(f"tuned.{name}", values)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", f"{study.seed_list} names a seed twice; a run counts once")
    yield from _decided_elsewhere("set", study.set)
    for name, overrides in study.arms.items():
        for field in overridden(overrides):
            if is_under([field], list(study.tune)):
                yield Problem(f"arms.{name}.{field}", "is tuned, for all arms; leave it out here or there")
        yield from _decided_elsewhere(f"arms.{name}", overrides)
        for field in overridden(overrides):
            if is_under([field], SAME_FOR_ALL):
                message = "arms are compared on the same text in the same way, so it belongs in `set`"
                yield Problem(f"arms.{name}.{field}", message)


def _outcomes(study: StudyConfig) -> Iterator[Problem]:
    names = ["bits_per_byte", "accuracy", *study.measure]
    if study.primary is not None and study.primary not in names:
        yield Problem("primary", f"{study.primary!r}; no such outcome{choose(study.primary, names)}")
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
        return list(flatten(expand(overrides)))
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
            message = f"is decided by the study's {DECIDED_BY[field]}, for all arms; leave it out"
            yield Problem(f"{section}.{field}", message)
