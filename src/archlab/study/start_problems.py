"""Check that the trained weights of a study fit each arm. This module loads torch."""

from collections.abc import Iterator, Sequence

import torch

from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.study.arm import Arm, section_of
from archlab.study.schema import StudyConfig
from archlab.study.shared_start import start_config
from archlab.training.teacher_weights import NO_TEACHER, teacher_problems
from archlab.training.trained_weights import open_weights
from archlab.transplant.plan import plan
from archlab.transplant.weights import Architecture, ChosenLayers, Weights, stored


def start_problems(study: StudyConfig, arms: Sequence[Arm]) -> Iterator[Problem]:
    """Yield a problem for each arm that the trained weights cannot become."""
    if study.start is None:
        for arm in arms:
            teacher = arm.config.train.teacher
            if teacher and not (teacher.path or arm.config.train.start):
                yield Problem(f"{section_of(study, arm.name)}.train.teacher.path", NO_TEACHER)
        return
    try:
        config = start_config(study)
        weights = _unread(config.model) if config else open_weights(str(study.start)).weights
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


def _chosen(config: Config) -> ChosenLayers | None:
    """Return the trained layers of an arm. Those that training will choose are replaced by the first ones."""
    layers = config.train.start_layers
    if layers is None:
        return None
    return ChosenLayers(tuple(range(config.model.n_layers)) if layers == "similar" else layers)


def _unread(model: ModelConfig) -> Weights:
    """Return the weights of a model without their values."""
    with torch.device("meta"):
        tensors = Decoder(model, seed=None).state_dict()
    lazy = {name: stored(name, x.shape, lambda x=x: x) for name, x in tensors.items()}
    return Weights(Architecture.of(model), lazy)
