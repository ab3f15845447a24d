"""Trained weights from which all arms of a study begin."""

from archlab.config.core.merge import Raw
from archlab.config.io import build_config, overlay
from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, on_start, read_config, without_start
from archlab.study.schema import StartTraining, StudyConfig

_OF_TRAINED_WEIGHTS = {"train.start_layers": None, "train.teacher": None, "train.lora": None}
"""Settings without a meaning for the training of the base, which begins from random weights."""


def base_of(study: StudyConfig) -> Raw:
    """Return the raw config that all arms share: the base with `set`, and the trained weights that `start` names.

    Raise ConfigError, with the field, if there are no such weights, and UserError if a config cannot be read.
    """
    if not isinstance(study.start, str):
        return overlay(read_config(study.base), study.set, Config)
    try:
        find_folder(study.start)
    except UserError as error:
        raise ConfigError([Problem("start", str(error))], "the study") from None
    base = on_start(without_start(read_config(study.base), study.base), study.start)
    return overlay(overlay(base, {"train.start": study.start}, Config), study.set, Config)


def start_config(study: StudyConfig) -> Config | None:
    """Return the config with which the study trains the base itself, or None if it does not."""
    start = study.start
    if not isinstance(start, StartTraining):
        return None
    base = overlay(base_of(study), _OF_TRAINED_WEIGHTS, Config)
    raw = overlay(overlay(base, start.set, Config), {"train.tokens": start.tokens}, Config)
    return build_config(raw, source="start")
