"""What a study may say where: names that exist, and no field that the study itself decides."""

from collections.abc import Iterator

from archlab.config.identity import flatten
from archlab.config.merge import Raw, expand
from archlab.config.problems import Problem, choose, is_under
from archlab.config.study_schema import StudyConfig
from archlab.errors import UserError

DECIDED = {"train.tokens": "budget", "train.seed": "seeds"}
"""Fields that the study sets itself, and from what."""

FOR_ALL = ("data", "train.eval_tokens", "train.eval_every", "train.checkpoint_every", "train.device")
"""Fields, or sections, in which arms cannot differ: they are judged on the same text in the same way."""

_NOT_TUNABLE = (*FOR_ALL, *DECIDED, "train.seq_len")


def misplaced(study: StudyConfig) -> Iterator[Problem]:
    """Everything said in the wrong place."""
    for section in ("tuned", "labels"):
        for name in getattr(study, section):
            if name not in study.arms:
                yield Problem(f"{section}.{name}", f"no such arm{choose(name, list(study.arms))}")
    yield from _not_tunable("tune", study.tune)
    for name, values in study.tuned.items():
        yield from _not_tunable(f"tuned.{name}", values)
    if len(set(study.seed_list)) < len(study.seed_list):
        yield Problem("seeds", f"{study.seed_list} names a seed twice; a run counts once")
    yield from _decided_elsewhere("set", study.set)
    for name, overrides in study.arms.items():
        for field in fields(overrides):
            if is_under([field], list(study.tune)):
                yield Problem(f"arms.{name}.{field}", "is tuned, for all arms; leave it out here or there")
        yield from _decided_elsewhere(f"arms.{name}", overrides)
        for field in fields(overrides):
            if is_under([field], FOR_ALL):
                message = "arms are compared on the same text in the same way, so it belongs in `set`"
                yield Problem(f"arms.{name}.{field}", message)


def fields(overrides: Raw) -> list[str]:
    """The dotted fields that overrides name; none where they contradict themselves."""
    try:
        return list(flatten(expand(overrides)))
    except UserError:
        return []


def _not_tunable(place: str, values: Raw) -> Iterator[Problem]:
    allowed = "fields of train that change how an arm learns, not what it is or how it is judged"
    for field in values:
        if not field.startswith("train.") or field in _NOT_TUNABLE:
            yield Problem(f"{place}.{field}", f"cannot be tuned; allowed: {allowed}")


def _decided_elsewhere(place: str, overrides: Raw) -> Iterator[Problem]:
    for field in fields(overrides):
        if field in DECIDED:
            message = f"is decided by the study's {DECIDED[field]}, for all arms; leave it out"
            yield Problem(f"{place}.{field}", message)
