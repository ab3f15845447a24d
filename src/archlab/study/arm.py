"""An arm of a study: its config, what it is called, and what it changes."""

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
"""Fields that have no effect on what a study's run trains, given its dtype, which is part of its name."""


@dataclass(frozen=True)
class Arm:
    """One alternative, ready to run except for its seed."""

    name: str
    label: str
    config: Config
    overrides: Raw
    """The fields that the study's file changes for it, relative to its reference."""
    adjusted: Raw
    """What was adjusted to hold the study's quantity equal."""
    follows: Raw
    """Derived fields that changed with them: the width of a head, where the number of heads was changed."""
    tuned: Raw
    """Values of `train` fields that tuning found, here or earlier."""
    reference: str | None
    """The arm it is compared with; None for the first."""
    factors: Raw
    """Factor -> its level; empty where the study's file names its arms."""
    plain_label: str
    """Its label without its size."""
    size: int | None = None
    """Parameters to which its base was scaled; None where the study names no sizes."""

    def at(self, size: int | None) -> "Arm":
        """The same arm, called after its size."""
        name, label = at_size(self.name, size), at_size(self.plain_label, size)
        return replace(
            self, name=name, label=label, reference=self.reference and at_size(self.reference, size), size=size
        )

    def with_values(self, values: Raw) -> "Arm":
        """The same arm with some `train` fields set, as found by tuning."""
        raw = overlay(self.config.model_dump(), values, Config)
        return replace(self, config=build_config(raw, source=f"arm {self.name}"), tuned={**self.tuned, **values})

    def seeded(self, seed: int, fold: int) -> Config:
        """The config of one run, which is judged on that fold of the text."""
        config = self._training(seed=seed)
        return config.model_copy(update={"data": config.data.model_copy(update={"fold": fold})})

    def compiled(self, compile: bool) -> "Arm":
        """The same arm with compiled layers, or without."""
        return replace(self, config=self._training(compile=compile))

    def training(self, tokens: int) -> "Arm":
        """The same arm on so many tokens."""
        return replace(self, config=self._training(tokens=tokens))

    def _training(self, **values: Any) -> Config:
        return self.config.model_copy(update={"train": self.config.train.model_copy(update=values)})


def overrides_of_arms(study: StudyConfig) -> dict[str, Overrides]:
    """Arm -> the fields that it changes, the first arm first. The last factor changes from each arm to the next."""
    if not study.cross:
        return study.arms
    shown = short_names(study.cross)
    levels = [dict(zip(study.cross, values, strict=True)) for values in product(*study.cross.values())]
    return {" ".join(said(shown[field], value) for field, value in point.items()): point for point in levels}


def usual_label(study: StudyConfig, arm: str) -> str:
    """What an arm is called where the study does not say. Of crossed factors a word that no other factor has stands
    for itself, as in `post warmup=0.1`; the others go by the last word of their field, unless two would share one."""
    if not study.cross:
        return arm
    last = {field: field.rpartition(".")[2] for field in study.cross}
    shown = last if len(set(last.values())) == len(last) else short_names(study.cross)
    overrides = overrides_of_arms(study)[arm]
    words = [level for levels in study.cross.values() for level in levels]
    return " ".join(
        level if isinstance(level, str) and words.count(level) == 1 else said(shown[field], level)
        for field, level in overrides.items()
    )


def section_of(study: StudyConfig, arm: str) -> str:
    """Where the study's file says what an arm changes."""
    return "cross" if study.cross else f"arms.{arm}"


def short_names(factors: Collection[str]) -> dict[str, str]:
    """Factor -> its name without the section that it begins with, `norm.placement`; unless two would share one."""
    short = {field: field.partition(".")[2] or field for field in factors}
    return short if len(set(short.values())) == len(short) else {field: field for field in factors}


def said(name: str, level: Any) -> str:
    """`norm.placement=pre`, as on the command line."""
    return f"{name}={to_yaml_line(level)}"


def levels_of(study: StudyConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Factor -> the level that an arm has; empty for an arm that is named."""
    return dict(overrides) if study.cross else {}


def at_size(name: str, size: int | None) -> str:
    """What an arm is called at a size: `layer at 3M`."""
    return name if size is None else f"{name} at {count(size)}"
