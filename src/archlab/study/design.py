"""Build the arms of a study: one validated config per arm. If the study has `equal`, each arm is adjusted to match the
first arm in parameters or training FLOPs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from archlab.config.core.base import MOST_TOKENS
from archlab.config.core.merge import Raw, expand
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import config_hash, differences, flatten, resolved
from archlab.config.io import build_config, overlay
from archlab.config.layers import PER_LAYER, parts_of_layers
from archlab.config.problems import ConfigError, Problem, explain, is_under, raise_problems
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import check_objective, resolve_train
from archlab.data.open import tokens_per_byte
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.pricing.work import computed_training_flops
from archlab.study.arm import NOT_TRAINED, Arm, default_label, levels_of, overrides_of_arms, section_of
from archlab.study.checks import (
    DECIDED_BY,
    SAME_FOR_ALL,
    field_problems,
    overridden_fields,
    unfit_outcomes,
    unknown_comparisons,
)
from archlab.study.fit import at_sizes, match_config, quantity_function
from archlab.study.formatting import listed
from archlab.study.schema import StudyConfig
from archlab.study.shared_start import base_of

_NEVER_FOLLOWS = ("train.seq_len",)
"""Derived fields that only an override may change, because they decide how the arm is evaluated. It is an error if such
a field changes as a consequence of other overrides."""


@dataclass(frozen=True)
class _Draft:
    """An arm under construction, with the values that the next arm of a ladder inherits."""

    arm: Arm
    raw: Raw
    """Values of the arm's config before validation, tuning and the adjustment for `equal`."""
    untuned: Config
    """The arm's config without its tuned values."""


def arms(study: StudyConfig, source: str = "the study") -> list[Arm]:
    """Return every arm. If the study has `equal`, the arms match in that quantity.

    `source` is the name of the study's file in error messages. Raise one UserError that lists all problems: invalid
    fields, outcomes that do not fit the text or task, and arms that cannot be matched. It is also a problem if an arm
    differs from its reference in fields that it does not override.
    """
    problems = list(field_problems(study))
    try:
        base = base_of(study)
        base["plugins"] = [*dict.fromkeys([*base.get("plugins", ()), *study.plugins])]
    except UserError as error:
        found = error.problems if isinstance(error, ConfigError) else [Problem("base", str(error))]
        problems += [*found, *_problems_of_arms(_invalid_arms(study), study)]
        raise_problems(list(dict.fromkeys(problems)), source)
        raise
    designed = list[Arm]()
    try:
        for size, scaled, sized in at_sizes(study, base):
            arms_of_size, problems_of_size = _arms_of_one_size(sized, scaled)
            designed += [arm.at(size) for arm in arms_of_size]
            problems += problems_of_size
    except UserError as error:
        problems.append(Problem("sizes", str(error)))
    problems += [*_unused_text(designed, study), *unfit_outcomes(study, designed)]
    if study.start is not None or any(arm.config.train.teacher for arm in designed):
        from archlab.study.start_problems import start_problems  # loads torch, which other studies do not need

        problems += start_problems(study, designed)
    if not problems:
        problems += unknown_comparisons(study, designed)
    raise_problems(list(dict.fromkeys(problems)), source)
    return designed


def single_arm_note(designed: Sequence[Arm]) -> list[str]:
    """Return a list with one note if no arm has a reference, so that nothing is compared. Otherwise return an empty
    list."""
    if any(arm.reference for arm in designed):
        return []
    return ["the study has only one arm, so nothing is compared; add another arm"]


def _arms_of_one_size(study: StudyConfig, base: Raw) -> tuple[list[Arm], list[Problem]]:
    drafts: list[_Draft] = []
    errors: dict[str, UserError] = {}
    for name in overrides_of_arms(study):
        try:
            drafts.append(_draft(study, name, base, drafts))
        except UserError as error:
            errors[name] = error
            if not drafts:  # nothing to match, but the fields of the others can be checked
                study = study.model_copy(update={"equal": None})
    for draft, point in product(drafts, grid(study)):
        try:
            draft.arm.with_values(point)
        except UserError as error:
            errors[draft.arm.name] = error
    designed = {draft.arm.name: draft.arm for draft in drafts}
    for arm in designed.values():
        try:  # its reference may come after it; an invalid reference is skipped
            if reference := designed.get(arm.reference or ""):
                designed[arm.name] = replace(arm, follows=_follows(arm, reference, study))
        except UserError as error:
            errors[arm.name] = error
    valid = [arm for name, arm in designed.items() if name not in errors]
    duplicates = _identical_arms([draft for draft in drafts if draft.arm.name not in errors], study)
    return list(designed.values()), [*_problems_of_arms(errors, study), *_judged_differently(valid, study), *duplicates]


def _unused_text(designed: Sequence[Arm], study: StudyConfig) -> Iterator[Problem]:
    tasks = [arm.config.data.task for arm in designed[:1] if isinstance(arm.config.data.task, Task)]
    for task in tasks if "data.path" in overridden_fields(study.set) else ():
        problem = f"is not used, because data.task is {task.kind}"
        yield Problem("set.data.path", f"{problem}; remove it, or add data.task: none")


def _identical_arms(drafts: Sequence[_Draft], study: StudyConfig) -> Iterator[Problem]:
    """Yield a problem for each arm whose runs would all be identical to those of an earlier arm, so that comparing the
    two arms would show nothing."""
    counts_configs = any(outcome.source in ("timing", "config") for outcome in study.measure.values())
    ignored = () if counts_configs else NOT_TRAINED
    per_layer = [f"model.{section}" for section in (*PER_LAYER, "layers")]
    first = dict[tuple[str, str, str], Arm]()
    for arm, config in ((draft.arm, draft.untuned) for draft in drafts):
        values = flatten(resolved(config))
        others = {field: value for field, value in values.items() if not is_under([field], (*ignored, *per_layer))}
        key = config_hash(others), repr(parts_of_layers(config.model)), config.train.dtype
        if (other := first.setdefault(key, arm)) is arm:
            continue
        idle = _idle_overrides(arm, other, study)
        reason = "neither changes a field"
        if study.against == "previous" and arm.reference != other.name:
            reason = f"{arm.name} undoes all changes that were made after {other.name}"
        elif idle:
            fields = listed([f"{field}: {to_yaml_line(value)}" for field, value in idle.items()])
            reason = f"{fields} {'makes' if len(idle) == 1 else 'make'} no difference"
        if study.equal and study.equal.by in idle:
            reason += f" (`equal` adjusts {study.equal.by})"
        section = section_of(study, arm.name)
        path = f"{section}.{next(iter(idle))}" if len(idle) == 1 else section
        problem = f"arms {other.name} and {arm.name} are identical: {reason}"
        yield Problem(path, f"{problem}; change or remove one")


def _idle_overrides(arm: Arm, other: Arm, study: StudyConfig) -> Raw:
    values, other_values = (flatten(expand(each.overrides)) for each in (arm, other))
    if study.against == "previous":
        return values
    if values == other_values:  # perhaps two spellings of a value: 10000 and 1e4
        return {f: v for f, v in values.items() if repr(v) != repr(other_values[f])} or values
    return {
        f: v
        for f, v in {**other_values, **values}.items()
        if (f, v) not in values.items() or (f, v) not in other_values.items()
    }


def _judged_differently(designed: Sequence[Arm], study: StudyConfig) -> Iterator[Problem]:
    """Yield a problem for each arm that divides held-out text into windows, or masks it, differently from the first
    arm."""
    trains = [resolve_train(arm.config) for arm in designed]
    for arm, train in zip(designed, trains, strict=True):
        if train.eval_seq_len != trains[0].eval_seq_len:
            lengths = f"{train.eval_seq_len} tokens, {designed[0].name} in windows of {trains[0].eval_seq_len}"
            problem = f"is evaluated in windows of {lengths}"
            yield _problem_of_arm(arm.name, f"{problem}; add train.eval_seq_len to `set`, for all arms", study)
        if train.document_mask != trains[0].document_mask:
            problem = "changes the evaluation, because it decides whether documents see each other"
            yield Problem(
                f"{section_of(study, arm.name)}.train.document_mask", f"{problem}; move it to `set`, for all arms"
            )


def _invalid_arms(study: StudyConfig) -> dict[str, UserError]:
    """Return the errors in the arms' overrides, by arm, for a study whose base cannot be read. The overrides are
    applied to a preset instead."""
    errors: dict[str, UserError] = {}
    for name, overrides in overrides_of_arms(study).items():
        raw = read_config("tiny-llama")
        try:
            raw = overlay(overlay(raw, study.set, Config), overrides, Config)
            Config.model_validate(raw)
        except ValidationError as error:
            errors[name] = ConfigError(explain(error, Config, raw), name)
        except UserError as error:
            errors[name] = error
    return errors


def grid(study: StudyConfig) -> list[Raw]:
    """Return every combination of the values in `tune`. The list is empty if the study does not tune."""
    if not study.tune:
        return []
    return [dict(zip(study.tune, values, strict=True)) for values in product(*study.tune.values())]


def _draft(study: StudyConfig, name: str, base: Raw, before: Sequence[_Draft]) -> _Draft:
    ladder = study.against == "previous"
    overrides, tuned = overrides_of_arms(study)[name], study.tuned.get(name, {})
    # The largest number of tokens, until a budget of FLOPs or bytes decides the number.
    budget = {"train.tokens": study.budget.tokens or MOST_TOKENS}
    raw = overlay(before[-1].raw if ladder and before else base, overrides, Config)
    raw = overlay(raw, budget, Config)
    authored = overlay(raw, tuned, Config)
    config, adjusted = build_config(authored), {}
    if study.equal and before:
        config, adjusted = match_config(authored, study.equal, quantity_function(study.equal)(before[0].arm.config))
    check_objective(config.model, config.train.objective)
    label = study.labels.get(name) or default_label(study, name)
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


def _problem_of_arm(name: str, message: str, study: StudyConfig) -> Problem:
    return Problem(section_of(study, name), f"{name}: {message}" if study.cross else message)


def _problems_of_arms(errors: Mapping[str, UserError], study: StudyConfig) -> Iterator[Problem]:
    """Yield the problems of the arms' configs. Each problem names a field of the study's file. A problem that all arms
    share is reported for the base."""
    problem_sets = [set(error.problems) for error in errors.values() if isinstance(error, ConfigError)]
    arms = overrides_of_arms(study)
    shared = set.intersection(*problem_sets) if len(problem_sets) == len(arms) else set[Problem]()
    for name, error in errors.items():
        own = section_of(study, name)
        if not isinstance(error, ConfigError):
            yield _problem_of_arm(name, str(error), study)
            continue
        sections = {own: arms[name], f"tuned.{name}": study.tuned.get(name, {}), "tune": study.tune, "set": study.set}
        for problem in error.problems:
            sections_setting_it = [section for section, values in sections.items() if _sets(values, problem)]
            section = (*sections_setting_it, "base" if problem in shared else own)[0]
            yield Problem(DECIDED_BY.get(problem.path) or f"{section}.{problem.path}", problem.message)


def _sets(values: Raw, problem: Problem) -> bool:
    return is_under([problem.path], overridden_fields(values))


def _within_budget(config: Config, study: StudyConfig) -> Config:
    if study.budget.tokens is not None:
        return config
    train = resolve_train(config)
    if study.budget.flops is not None and train.teacher is not None:
        problem = "a budget of FLOPs does not count the passes of a teacher; allowed: budget.tokens or budget.bytes"
        raise ConfigError([Problem("train.teacher", problem)], "the budget")
    if study.budget.bytes is None:
        budget = f"{study.budget.flops:.3g} FLOPs"
        tokens = int((study.budget.flops or 0) / computed_training_flops(config))
    else:
        budget = f"{study.budget.bytes:,} bytes"
        tokens = int(study.budget.bytes * tokens_per_byte(config.data, config.model.vocab_size))
    batches = tokens // train.batch_tokens
    if not batches:
        needed = f"a run needs at least one batch of {train.batch_tokens:,} tokens; raise the budget"
        problem = f"{budget} are enough for only {tokens:,} tokens, but {needed}"
        raise ConfigError([Problem("train.tokens", problem)], "the budget")
    return build_config(overlay(config.model_dump(), {"train.tokens": batches * train.batch_tokens}, Config))


def _follows(arm: Arm, reference: Arm, study: StudyConfig) -> Raw:
    """Return the fields that changed as a consequence of the arm's overrides, with their new values. Raise UserError if
    the arm differs from its reference in any other field."""
    declared = {*overridden_fields(arm.overrides), *arm.adjusted, *reference.adjusted}
    declared |= {*arm.tuned, *reference.tuned, *study.tune}
    if study.against != "previous":  # the reference may have its own overrides
        declared |= {*overridden_fields(reference.overrides)}
    if study.budget.tokens is None:
        declared |= {"train.tokens"}
    changed = differences(reference.config, arm.config)
    values, reference_values = (flatten(c.model_dump(mode="json")) for c in (arm.config, reference.config))
    # A side that sets one field of a section brings the whole section, if the other side lacks it.
    left_out = [f"{field}." for side in (values, reference_values) for field, value in side.items() if value is None]
    declared |= {section[:-1] for section in left_out for name in declared if name.startswith(section)}
    moved = {field: values for field, values in changed.items() if not _is_declared(field, values, declared)}
    silent = {f: v for f, v in moved.items() if values.get(f) != reference_values.get(f) or f in _NEVER_FOLLOWS}
    if silent:
        lines = [f"    {field}: {old} in {reference.name}, {new} in {arm.name}" for field, (old, new) in silent.items()]
        hint = "add these fields to the arm, or to `set` for all arms"
        raise UserError("\n".join([f"differs from {reference.name} in fields that it does not set; {hint}", *lines]))
    return {field: new for field, (_, new) in moved.items() if not is_under([field], SAME_FOR_ALL)}


def _is_declared(field: str, values: tuple[Any, Any], declared: Iterable[str]) -> bool:
    for name in declared:
        if field == name or field.startswith(name + "."):
            return True
        section, _, last_word = name.rpartition(".")
        if last_word == "kind" and field.startswith(section + ".") and None in values:
            return True
    return False
