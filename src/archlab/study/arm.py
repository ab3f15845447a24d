"""An arm of a study: its config, its names, and the fields that it changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from archlab.config.core.base import Overrides
from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import NO_EFFECT_ON_RESULT
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.pricing.units import count
from archlab.study.schema import StudyConfig

NOT_TRAINED = (*NO_EFFECT_ON_RESULT, "train.compile", "train.device", "train.dtype")
"""Fields that are left out of a run's name, because they do not affect the trained model. The dtype does affect it, but
is a separate part of the name."""


@dataclass(frozen=True)
class Arm:
    """One of the alternatives that a study compares. Its config is complete except for the seed and the fold of each
    run."""

    name: str
    label: str
    config: Config
    overrides: Raw
    """Fields that the study's file changes for the arm, with their values."""
    adjusted: Raw
    """Field that was adjusted so that the arm matches the study's `equal` quantity, with its value. Empty if no field
    was adjusted."""
    follows: Raw
    """Derived fields that changed because of the overrides, with their values. For example, the head width depends on
    the number of heads."""
    tuned: Raw
    """Values of `train` fields that tuning found, in this study or an earlier one."""
    reference: str | None
    """Name of the arm that this arm is compared with; None for the first arm."""
    factors: Raw
    """Level of each crossed factor, by factor. Empty if the study does not cross factors."""
    plain_label: str
    """Label of the arm without the model size."""
    size: int | None = None
    """Parameter count to which the base was scaled; None if the study has no sizes."""

    def at(self, size: int | None) -> "Arm":
        """Return a copy of the arm whose name and label include the model size."""
        name, label = name_at_size(self.name, size), name_at_size(self.plain_label, size)
        return replace(
            self, name=name, label=label, reference=self.reference and name_at_size(self.reference, size), size=size
        )

    def with_values(self, values: Raw) -> "Arm":
        """Return a copy of the arm with these tuned values of `train` fields."""
        raw = overlay(self.config.model_dump(), values, Config)
        return replace(self, config=build_config(raw, source=f"arm {self.name}"), tuned={**self.tuned, **values})

    def seeded(self, seed: int, fold: int) -> Config:
        """Return the config of one run with this seed. The run is evaluated on the given fold of the corpus."""
        config = self._training(seed=seed)
        return config.model_copy(update={"data": config.data.model_copy(update={"fold": fold})})

    def compiled(self, compile: bool) -> "Arm":
        """Return a copy of the arm with or without compiled layers."""
        return replace(self, config=self._training(compile=compile))

    def training(self, tokens: int) -> "Arm":
        """Return a copy of the arm with this number of training tokens."""
        return replace(self, config=self._training(tokens=tokens))

    def _training(self, **values: Any) -> Config:
        return self.config.model_copy(update={"train": self.config.train.model_copy(update=values)})


def overrides_of_arms(study: StudyConfig) -> dict[str, Overrides]:
    """Return the fields that each arm changes, by arm, in the study's order. With crossed factors, the last factor
    varies fastest."""
    if not study.cross:
        return study.arms
    names = short_names(study.cross)
    levels = [dict(zip(study.cross, values, strict=True)) for values in product(*study.cross.values())]
    return {" ".join(setting_text(names[field], value) for field, value in point.items()): point for point in levels}


def default_label(study: StudyConfig, arm: str) -> str:
    """Return the default label of an arm without a label in the study's file.

    For crossed factors, a level that is a unique word stands alone, as in `post warmup=0.1`. Other levels are preceded
    by the last word of their field, or by a longer name if two factors would share that word.
    """
    if not study.cross:
        return arm
    last = {field: field.rpartition(".")[2] for field in study.cross}
    names = last if len(set(last.values())) == len(last) else short_names(study.cross)
    overrides = overrides_of_arms(study)[arm]
    words = [level for levels in study.cross.values() for level in levels]
    return " ".join(
        level if isinstance(level, str) and words.count(level) == 1 else setting_text(names[field], level)
        for field, level in overrides.items()
    )


def section_of(study: StudyConfig, arm: str) -> str:
    """Return the section of the study's file that holds the changes of an arm."""
    return "cross" if study.cross else f"arms.{arm}"


def short_names(factors: Collection[str]) -> dict[str, str]:
    """Return the name of each factor without its first section, such as `norm.placement` for `model.norm.placement`. If
    two short names would clash, return the full names."""
    short = {field: field.partition(".")[2] or field for field in factors}
    return short if len(set(short.values())) == len(short) else {field: field for field in factors}


def setting_text(name: str, level: Any) -> str:
    """Return a setting as on the command line, for example `norm.placement=pre`."""
    return f"{name}={to_yaml_line(level)}"


def levels_of(study: StudyConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arm's level of each factor. Empty if the study does not cross factors."""
    return dict(overrides) if study.cross else {}


def name_at_size(name: str, size: int | None) -> str:
    """Return the name of an arm at a model size, for example `layer at 3M`."""
    return name if size is None else f"{name} at {count(size)}"
