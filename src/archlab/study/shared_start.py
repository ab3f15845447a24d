"""Trained weights from which all arms of a study begin.

Functions import what loads torch, because only studies with such weights need it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from archlab.config.core.merge import Raw
from archlab.config.io import build_config, overlay
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, on_start, read_config, without_start
from archlab.study.arm import Arm, section_of
from archlab.study.schema import StartTraining, StudyConfig

if TYPE_CHECKING:
    from archlab.transplant.weights import ChosenLayers, Weights

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


def start_problems(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield a problem for each arm that the trained weights cannot become."""
    if study.start is None:
        for arm in arms:
            teacher = arm.config.train.teacher
            if teacher and not (teacher.path or arm.config.train.start):
                from archlab.training.teacher_weights import NO_TEACHER

                yield Problem(f"{section_of(study, arm.name)}.train.teacher.path", NO_TEACHER)
        return
    from archlab.training.start_weights import open_start
    from archlab.training.teacher_weights import teacher_problems
    from archlab.transplant.plan import plan

    try:
        config = start_config(study)
        weights = _unread(config.model) if config else open_start(str(study.start)).weights
    except UserError as error:
        yield Problem("start", str(error))
        return
    for arm in arms:
        if config and arm.config.model.vocab_size != config.model.vocab_size:
            problem = "the tokenizer of weights that the study trains itself has the vocabulary of the base"
            yield Problem(f"{section_of(study, arm.name)}.model.vocab_size", f"{problem}; allowed: a folder as start")
            continue
        try:
            plan(weights, arm.config.model, _chosen(arm.config))
        except UserError as error:
            yield Problem(section_of(study, arm.name), str(error))
            continue
        teacher = arm.config.train.teacher
        if teacher and not teacher.path:
            for problem in teacher_problems(arm.config, teacher, "start", weights.model):
                yield Problem(f"{section_of(study, arm.name)}.{problem.path}", problem.message)


def _chosen(config: Config) -> "ChosenLayers | None":
    """Return the trained layers of an arm. Those that training will choose are replaced by the first ones."""
    from archlab.transplant.weights import ChosenLayers

    layers = config.train.start_layers
    if layers is None:
        return None
    return ChosenLayers(tuple(range(config.model.n_layers)) if layers == "similar" else layers)


def _unread(model: ModelConfig) -> "Weights":
    """Return the weights of a model without their values."""
    import torch

    from archlab.model.decoder import Decoder
    from archlab.transplant.weights import Architecture, Weights, stored

    with torch.device("meta"):
        tensors = Decoder(model, seed=None).state_dict()
    lazy = {name: stored(name, x.shape, lambda x=x: x) for name, x in tensors.items()}
    return Weights(Architecture.of(model), lazy)
