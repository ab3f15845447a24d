"""Which arms a study has: those that its file names, or every combination of the levels of its factors."""

from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

from archlab.config.core.base import Overrides
from archlab.config.core.yaml_text import to_yaml_line
from archlab.study.schema import StudyConfig


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
