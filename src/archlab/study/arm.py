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
from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.study.schema import StudyConfig

NOT_TRAINED = (*NO_EFFECT_ON_RESULT, "train.compile", "train.device", "train.dtype")
"""Config fields that are not part of a run's name, because they do not affect the trained model. `train.dtype` does
affect it. The name contains the dtype separately, after `auto` is resolved."""


@dataclass(frozen=True)
class Arm:
    """One of the alternatives that a study compares. `config` is complete except for the seed and the fold, which
    differ between runs."""

    name: str
    label: str
    config: Config
    overrides: Raw
    """Values of the fields that the study's file changes for this arm."""
    adjusted: Raw
    """The adjusted field and its value, if a field was adjusted so that the arm matches the first arm in the quantity
    of `equal`. Otherwise empty."""
    follows: Raw
    """Fields that changed as a consequence of the overrides, with their new values. For example, the head width changes
    with the number of heads."""
    tuned: Raw
    """Values of `train` fields that tuning found, in this study or in an earlier one."""
    reference: str | None
    """Name of the arm that this arm is compared with; None for the first arm."""
    factors: Raw
    """The arm's level of each crossed factor. Empty if the study does not cross factors."""
    plain_label: str
    """Label of the arm without the model size."""
    size: int | None = None
    """Parameter count to which the base was scaled; None if the study has no `sizes`."""

    @property
    def parameters(self) -> int:
        return parameters(self.config.model).total

    def at(self, size: int | None) -> "Arm":
        """Return a copy of the arm for this model size. Its name, its label and the name of its reference include the
        size."""
        name, label = name_at_size(self.name, size), name_at_size(self.plain_label, size)
        return replace(
            self, name=name, label=label, reference=self.reference and name_at_size(self.reference, size), size=size
        )

    def with_values(self, values: Raw) -> "Arm":
        """Return a copy of the arm with these values of `train` fields."""
        raw = overlay(self.config.model_dump(), values, Config)
        return replace(self, config=build_config(raw, source=f"arm {self.name}"), tuned={**self.tuned, **values})

    def seeded(self, seed: int, fold: int) -> Config:
        """Return the config of the arm's run with this seed, evaluated on this fold of the corpus."""
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
    """Return the overrides of each arm by name, in the order of the study's file. If factors are crossed, the last
    factor varies fastest."""
    if not study.cross:
        return study.arms
    names = short_names(study.cross)
    levels = [dict(zip(study.cross, values, strict=True)) for values in product(*study.cross.values())]
    return {" ".join(setting_text(names[field], value) for field, value in point.items()): point for point in levels}


def default_label(study: StudyConfig, arm: str) -> str:
    """Return the label of an arm for which the study's file has no label.

    If factors are crossed, the label lists the arm's levels, as in `post warmup=0.1`. A word that occurs only once
    among all levels stands alone. Any other level follows the last word of its field's name, or a longer name if two
    factors end in the same word.
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
    """Return the section of the study's file that contains the arm's overrides."""
    return "cross" if study.cross else f"arms.{arm}"


def short_names(factors: Collection[str]) -> dict[str, str]:
    """Return a shorter name for each factor: `model.norm.placement` becomes `norm.placement`. If two shorter names are
    identical, return the full names."""
    short = {field: field.partition(".")[2] or field for field in factors}
    return short if len(set(short.values())) == len(short) else {field: field for field in factors}


def setting_text(name: str, level: Any) -> str:
    """Return a setting as it is written on the command line, for example `norm.placement=pre`."""
    return f"{name}={to_yaml_line(level)}"


def levels_of(study: StudyConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arm's level of each factor. Empty if the study does not cross factors."""
    return dict(overrides) if study.cross else {}


def name_at_size(name: str, size: int | None) -> str:
    """Return the name of an arm at a model size, for example `layer at 3M`."""
    return name if size is None else f"{name} at {count(size)}"
