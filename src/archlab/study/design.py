"""From a study file to its arms: one validated config each, with what is held equal matched and checked."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Any

from archlab.config.check import validate
from archlab.config.identity import diff
from archlab.config.io import build_config, overlay, read_config, studies
from archlab.config.merge import Raw
from archlab.config.problems import nearest
from archlab.config.schema import Config
from archlab.config.study_schema import StudyConfig
from archlab.config.yaml_text import read_yaml
from archlab.cost.flops import training_flops
from archlab.errors import UserError
from archlab.study.match import matched, quantity


@dataclass(frozen=True)
class Arm:
    """One alternative, ready to run but for its seed."""

    name: str
    label: str
    config: Config
    overrides: Raw
    """What it says it changes, relative to its reference."""
    adjusted: Raw
    """What was turned to hold the study's quantity equal."""
    tuned: Raw
    """Values of `train` fields that tuning found, here or earlier."""
    reference: str | None
    """The arm it is compared with; None for the first."""

    def with_values(self, values: Raw) -> "Arm":
        """The same arm with some `train` fields set, as found by tuning."""
        raw = overlay(self.config.model_dump(), values, Config)
        return replace(self, config=build_config(raw, source=f"arm {self.name}"), tuned={**self.tuned, **values})

    def seeded(self, seed: int) -> Config:
        """The config of one run."""
        return self.config.model_copy(update={"train": self.config.train.model_copy(update={"seed": seed})})


def load_study(source: str) -> tuple[str, StudyConfig]:
    """(name, study) of a YAML file, a study folder, or a study that comes with archlab."""
    name, file = _find(source)
    return name, validate(StudyConfig, _read(file), str(file))


def _find(source: str) -> tuple[str, Path | Traversable]:
    path, known = Path(source), studies()
    if path.is_dir() and (path / "study.yaml").is_file():
        return path.resolve().name, path / "study.yaml"
    if path.is_file():
        return path.stem, path
    if source in known:
        return source, known[source]
    hint = nearest(source, known) or f"; allowed: {', '.join(known)}"
    raise UserError(f"no study {source!r}: neither a file, a study folder, nor one of ours{hint}")


def _read(file: Path | Traversable) -> Raw:
    """A study's raw values, over those of the study it extends; a base that lies beside the file gets its full path."""
    raw = read_yaml(file)
    beside = file.parent / str(raw.get("base", "")) if isinstance(file, Path) else None
    if beside is not None and beside.is_file():
        raw["base"] = str(beside.resolve())
    if not isinstance(raw.get("extends"), str):
        return raw
    return {**_read(_find(raw.pop("extends"))[1]), **raw}


def arms(study: StudyConfig) -> list[Arm]:
    """Every arm, matched; UserError where one cannot be, or differs from its reference in more than it says."""
    _check_names(study)
    base = overlay(read_config(study.base), study.set, Config)
    if study.budget.tokens is not None:
        base = overlay(base, {"train.tokens": study.budget.tokens}, Config)
    designed: list[Arm] = []
    target = 0.0
    raw = base
    for name, overrides in study.arms.items():
        first = not designed
        raw = overlay(raw if first or study.against == "previous" else base, overrides, Config)
        if first:
            base = raw
        tuned = study.tuned.get(name, {})
        config, adjusted = build_config(overlay(raw, tuned, Config), source=f"arm {name}"), {}
        if study.equal and first:
            target = quantity(study.equal)(config)
        elif study.equal:
            config, adjusted = matched(overlay(raw, tuned, Config), study.equal, target, name)
        reference = None if first else designed[-1 if study.against == "previous" else 0]
        arm = Arm(
            name=name,
            label=study.labels.get(name, name),
            config=_within_budget(config, study, name),
            overrides=overrides,
            adjusted=adjusted,
            tuned=tuned,
            reference=reference and reference.name,
        )
        if reference:
            _check_says_all(arm, reference, study)
        designed.append(arm)
    return designed


def grid(study: StudyConfig) -> list[Raw]:
    """Every combination of the values to tune over; empty when nothing is tuned."""
    if not study.tune:
        return []
    return [dict(zip(study.tune, values, strict=True)) for values in product(*study.tune.values())]


def _within_budget(config: Config, study: StudyConfig, arm: str) -> Config:
    if study.budget.flops is None:
        return config
    train = config.train
    per_token = training_flops(config.model, train.seq_len or config.model.max_seq_len)
    tokens = int(study.budget.flops / per_token) // train.batch_tokens * train.batch_tokens
    raw = overlay(config.model_dump(), {"train.tokens": max(tokens, 1)}, Config)
    return build_config(raw, source=f"arm {arm} at {study.budget.flops:.3g} FLOPs")


def _check_names(study: StudyConfig) -> None:
    for section in ("tuned", "labels"):
        unknown = [name for name in getattr(study, section) if name not in study.arms]
        if unknown:
            raise UserError(f"{section}.{unknown[0]}: no such arm; the arms are {', '.join(study.arms)}")
    fields = [*study.tune, *(field for values in study.tuned.values() for field in values)]
    wrong = next((field for field in fields if not field.startswith("train.") or field == "train.seed"), None)
    if wrong:
        raise UserError(
            f"{wrong}: only fields of train (and not the seed) can be tuned, so that arms stay what they say"
        )
    seeds = study.seed_list
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds: {seeds} names a seed twice; a run counts once")


def _check_says_all(arm: Arm, reference: Arm, study: StudyConfig) -> None:
    said = {*arm.overrides, *arm.adjusted, *reference.adjusted, *arm.tuned, *reference.tuned, *study.tune}
    if study.budget.flops is not None:
        said.add("train.tokens")
    changed = diff(reference.config, arm.config)
    silent = {field: values for field, values in changed.items() if not _is_said(field, values, said)}
    if silent:
        lines = [f"  {field}: {old} in {reference.name}, {new} here" for field, (old, new) in silent.items()]
        hint = "say so in the arm, or set it in the base for all"
        raise UserError(
            "\n".join([f"arm {arm.name} differs from {reference.name} in more than it says; {hint}", *lines])
        )


def _is_said(field: str, values: tuple[Any, Any], said: Iterable[str]) -> bool:
    """Named itself or by a section around it, or a key that only one of two kinds has, the kind being named."""
    for name in said:
        if field == name or field.startswith(name + "."):
            return True
        section, _, last = name.rpartition(".")
        if last == "kind" and field.startswith(section + ".") and None in values:
            return True
    return False
