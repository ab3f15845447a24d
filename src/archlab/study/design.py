"""From a study to its arms: one validated config each, with what is held equal matched and checked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from archlab.config.core.base import MOST_TOKENS
from archlab.config.core.merge import Raw, expand
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import config_hash, diff, flatten, resolved
from archlab.config.io import build_config, overlay
from archlab.config.layers import PER_LAYER, parts_of_layers
from archlab.config.problems import ConfigError, Problem, explain, is_under, raise_problems
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import check_next_token, resolve_train
from archlab.data.open import tokens_per_byte
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.pricing.work import computed_training_flops
from archlab.study.arm import NOT_TRAINED, Arm, levels_of, overrides_of_arms, section_of, usual_label
from archlab.study.checks import DECIDED_BY, SAME_FOR_ALL, foreign_outcomes, misplaced_fields, overridden
from archlab.study.fit import at_sizes, matched, quantity
from archlab.study.formatting import listed
from archlab.study.schema import StudyConfig

_NEVER_FOLLOWS = ("train.seq_len",)
"""Derived too, but from the model, and it decides how an arm is judged: an arm that changes it has to say so."""


@dataclass(frozen=True)
class _Draft:
    """An arm, and its values as the arms after it start from them."""

    arm: Arm
    raw: Raw
    """Before anything was adjusted."""
    untuned: Config
    """The arm's config without its tuned values."""


def arms(study: StudyConfig) -> list[Arm]:
    """Every arm, matched.

    UserError with every problem at once: fields that are wrong, outcomes that the text or task does not have, an arm
    that cannot be matched, an arm that differs from its reference in more than its overrides.
    """
    problems = list(misplaced_fields(study))
    try:
        base = overlay(read_config(study.base), study.set, Config)
        base["plugins"] = [*dict.fromkeys([*base.get("plugins", ()), *study.plugins])]
    except UserError as error:
        problems += [Problem("base", str(error)), *_problems_of_arms(_invalid_arms(study), study)]
        raise_problems(list(dict.fromkeys(problems)), "the study")
        raise
    designed = list[Arm]()
    try:
        for size, scaled, sized in at_sizes(study, base):
            found, wrong = _of_one_size(sized, scaled)
            designed += [arm.at(size) for arm in found]
            problems += wrong
    except UserError as error:
        problems.append(Problem("sizes", str(error)))
    problems += [*_unread_text(designed, study), *foreign_outcomes(study, designed)]
    raise_problems(list(dict.fromkeys(problems)), "the study")
    return designed


def _of_one_size(study: StudyConfig, base: Raw) -> tuple[list[Arm], list[Problem]]:
    """Every arm, and all that is wrong with them."""
    drafts: list[_Draft] = []
    wrong: dict[str, UserError] = {}
    for name in overrides_of_arms(study):
        try:
            drafts.append(_draft(study, name, base, drafts))
        except UserError as error:
            wrong[name] = error
            if not drafts:  # nothing to be matched with, but the others' fields can be judged
                study = study.model_copy(update={"equal": None})
    for draft, point in product(drafts, grid(study)):
        try:
            draft.arm.with_values(point)
        except UserError as error:
            wrong[draft.arm.name] = error
    designed = {draft.arm.name: draft.arm for draft in drafts}
    for arm in designed.values():
        try:  # its reference may come after it; one that is wrong itself can tell nothing
            if reference := designed.get(arm.reference or ""):
                designed[arm.name] = replace(arm, follows=_follows(arm, reference, study))
        except UserError as error:
            wrong[arm.name] = error
    right = [arm for name, arm in designed.items() if name not in wrong]
    equal = _equal_arms([draft for draft in drafts if draft.arm.name not in wrong], study)
    return list(designed.values()), [*_problems_of_arms(wrong, study), *_judged_otherwise(right, study), *equal]


def _unread_text(designed: Sequence[Arm], study: StudyConfig) -> Iterator[Problem]:
    """Text that the study names although its arms read a task."""
    tasks = [arm.config.data.task for arm in designed[:1] if isinstance(arm.config.data.task, Task)]
    for task in tasks if "data.path" in overridden(study.set) else ():
        found = f"is not read, because data.task is {task.kind}"
        yield Problem("set.data.path", f"{found}; leave it out, or add data.task: none")


def _equal_arms(drafts: Sequence[_Draft], study: StudyConfig) -> Iterator[Problem]:
    """Arms that would share all their runs with an arm above them, so that a comparison says nothing."""
    of_configs = any(outcome.source in ("timing", "config") for outcome in study.measure.values())
    unseen = () if of_configs else NOT_TRAINED
    per_layer = [f"model.{section}" for section in (*PER_LAYER, "layers")]
    first = dict[tuple[str, str, str], Arm]()
    for arm, config in ((draft.arm, draft.untuned) for draft in drafts):
        values = flatten(resolved(config))
        others = {field: value for field, value in values.items() if not is_under([field], (*unseen, *per_layer))}
        seen = config_hash(others), repr(parts_of_layers(config.model)), config.train.dtype
        if (other := first.setdefault(seen, arm)) is arm:
            continue
        idle = _idle_overrides(arm, other, study)
        why = "neither changes anything"
        if study.against == "previous" and arm.reference != other.name:
            why = f"{arm.name} takes back what the steps since {other.name} have changed"
        elif idle:
            said = listed([f"{field}: {to_yaml_line(value)}" for field, value in idle.items()])
            why = f"{said} {'makes' if len(idle) == 1 else 'make'} no difference"
        if study.equal and study.equal.by in idle:
            why += f" (`equal` adjusts {study.equal.by})"
        section = section_of(study, arm.name)
        path = f"{section}.{next(iter(idle))}" if len(idle) == 1 else section
        found = f"arms {other.name} and {arm.name} are equal: {why}"
        yield Problem(path, f"{found}; change or remove one")


def _idle_overrides(arm: Arm, other: Arm, study: StudyConfig) -> Raw:
    """The fields in which two equal arms pretend to differ, with their values."""
    ours, theirs = (flatten(expand(each.overrides)) for each in (arm, other))
    if study.against == "previous":
        return ours
    if ours == theirs:  # perhaps spelled in two ways: 10000 and 1e4
        return {f: v for f, v in ours.items() if repr(v) != repr(theirs[f])} or ours
    return {f: v for f, v in {**theirs, **ours}.items() if (f, v) not in ours.items() or (f, v) not in theirs.items()}


def _judged_otherwise(designed: Sequence[Arm], study: StudyConfig) -> Iterator[Problem]:
    """Arms whose held-out text is cut or masked in another way than the first one's."""
    trains = [resolve_train(arm.config) for arm in designed]
    for arm, train in zip(designed, trains, strict=True):
        if train.eval_seq_len != trains[0].eval_seq_len:
            lengths = f"{train.eval_seq_len} tokens, {designed[0].name} in {trains[0].eval_seq_len}"
            found = f"is judged in windows of {lengths}"
            yield _of_arm(arm.name, f"{found}; say train.eval_seq_len in `set`, for all arms", study)
        if train.document_mask != trains[0].document_mask:
            found = "documents do not see each other in evaluation where train.document_mask is true"
            yield Problem(
                f"{section_of(study, arm.name)}.train.document_mask", f"{found}; it belongs in `set`, for all arms"
            )


def _invalid_arms(study: StudyConfig) -> dict[str, UserError]:
    """Arms whose overrides are wrong whatever base they start from."""
    wrong: dict[str, UserError] = {}
    for name, overrides in overrides_of_arms(study).items():
        raw = read_config("tiny-llama")
        try:
            raw = overlay(overlay(raw, study.set, Config), overrides, Config)
            Config.model_validate(raw)
        except ValidationError as error:
            wrong[name] = ConfigError(explain(error, Config, raw), name)
        except UserError as error:
            wrong[name] = error
    return wrong


def grid(study: StudyConfig) -> list[Raw]:
    """Every combination of the values to tune over; empty when nothing is tuned."""
    if not study.tune:
        return []
    return [dict(zip(study.tune, values, strict=True)) for values in product(*study.tune.values())]


def _draft(study: StudyConfig, name: str, base: Raw, before: Sequence[_Draft]) -> _Draft:
    """The next arm, after those before it, but for what follows from what it changes."""
    ladder = study.against == "previous"
    overrides, tuned = overrides_of_arms(study)[name], study.tuned.get(name, {})
    # As many as a run may have, until a budget of FLOPs or bytes says how many.
    budget = {"train.tokens": study.budget.tokens or MOST_TOKENS}
    raw = overlay(before[-1].raw if ladder and before else base, overrides, Config)
    raw = overlay(raw, budget, Config)
    authored = overlay(raw, tuned, Config)
    config, adjusted = build_config(authored), {}
    if study.equal and before:
        config, adjusted = matched(authored, study.equal, quantity(study.equal)(before[0].arm.config))
    check_next_token(config.model)
    label = study.labels.get(name) or usual_label(study, name)
    arm = Arm(
        name=name,
        label=label,
        config=_within_budget(config, study),
        overrides=overrides,
        adjusted=adjusted,
        follows={},
        tuned=tuned,
        reference=_reference(study, name, [draft.arm.name for draft in before]),
        factors=levels_of(study, overrides),
        plain_label=label,
    )
    if not tuned:
        return _Draft(arm, raw, arm.config)
    untuned = config.model_copy(update={"train": build_config(raw).train})
    return _Draft(arm, raw, _within_budget(untuned, study))


def _reference(study: StudyConfig, name: str, before: Sequence[str]) -> str | None:
    if not before:
        return None
    if isinstance(study.against, dict):
        return study.against.get(name, before[0])
    return before[-1] if study.against == "previous" else before[0]


def _of_arm(name: str, message: str, study: StudyConfig) -> Problem:
    """A problem of no single field."""
    return Problem(section_of(study, name), f"{name}: {message}" if study.cross else message)


def _problems_of_arms(wrong: Mapping[str, UserError], study: StudyConfig) -> Iterator[Problem]:
    """What is wrong with the arms' configs, and where in the study's file; what all arms share is wrong in the base."""
    every = [set(error.problems) for error in wrong.values() if isinstance(error, ConfigError)]
    arms = overrides_of_arms(study)
    shared = set.intersection(*every) if len(every) == len(arms) else set[Problem]()
    for name, error in wrong.items():
        own = section_of(study, name)
        if not isinstance(error, ConfigError):
            yield _of_arm(name, str(error), study)
            continue
        sections = {own: arms[name], f"tuned.{name}": study.tuned.get(name, {}), "tune": study.tune, "set": study.set}
        for problem in error.problems:
            found = [section for section, values in sections.items() if _sets(values, problem)]
            section = (*found, "base" if problem in shared else own)[0]
            yield Problem(DECIDED_BY.get(problem.path) or f"{section}.{problem.path}", problem.message)


def _sets(values: Raw, problem: Problem) -> bool:
    return is_under([problem.path], overridden(values))


def _within_budget(config: Config, study: StudyConfig) -> Config:
    if study.budget.tokens is not None:
        return config
    train = resolve_train(config)
    if study.budget.bytes is None:
        budget = f"{study.budget.flops:.3g} FLOPs"
        tokens = int((study.budget.flops or 0) / computed_training_flops(config))
    else:
        budget = f"{study.budget.bytes:,} bytes"
        tokens = int(study.budget.bytes * tokens_per_byte(config.data, config.model.vocab_size))
    batches = tokens // train.batch_tokens
    if not batches:
        found = f"{budget} train {tokens:,} tokens, less than a batch of {train.batch_tokens:,}"
        raise ConfigError([Problem("train.tokens", found)], "the budget")
    return build_config(overlay(config.model_dump(), {"train.tokens": batches * train.batch_tokens}, Config))


def _follows(arm: Arm, reference: Arm, study: StudyConfig) -> Raw:
    """The derived fields that change with the arm's overrides; UserError when it differs in anything else."""
    declared = {*overridden(arm.overrides), *arm.adjusted, *reference.adjusted}
    declared |= {*arm.tuned, *reference.tuned, *study.tune}
    if study.against != "previous":  # the reference may change fields of its own
        declared |= {*overridden(reference.overrides)}
    if study.budget.tokens is None:
        declared |= {"train.tokens"}
    changed = diff(reference.config, arm.config)
    ours, theirs = (flatten(c.model_dump(mode="json")) for c in (arm.config, reference.config))
    # Who gives one field of a section that the other side leaves out brings all of the section.
    left_out = [f"{field}." for side in (ours, theirs) for field, value in side.items() if value is None]
    declared |= {section[:-1] for section in left_out for name in declared if name.startswith(section)}
    moved = {field: values for field, values in changed.items() if not _is_declared(field, values, declared)}
    silent = {f: v for f, v in moved.items() if ours.get(f) != theirs.get(f) or f in _NEVER_FOLLOWS}
    if silent:
        lines = [f"    {field}: {old} in {reference.name}, {new} here" for field, (old, new) in silent.items()]
        hint = "say so in the arm, or set it in the base for all"
        raise UserError("\n".join([f"differs from {reference.name} in more than it says; {hint}", *lines]))
    return {field: new for field, (_, new) in moved.items() if not is_under([field], SAME_FOR_ALL)}


def _is_declared(field: str, values: tuple[Any, Any], declared: Iterable[str]) -> bool:
    """Whether the field is named, or a section around it, or the kind without which the field does not exist."""
    for name in declared:
        if field == name or field.startswith(name + "."):
            return True
        section, _, last = name.rpartition(".")
        if last == "kind" and field.startswith(section + ".") and None in values:
            return True
    return False
