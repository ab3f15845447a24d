"""Read the model config of a Hugging Face folder."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archlab.config.core.merge import Raw
from archlab.config.core.text import note_once
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.hf.folder import CONFIG, has_weights
from archlab.hf.towers import multimodal, read_text_values

if TYPE_CHECKING:
    from archlab.hf.family import Family


def read_model_config(folder: Path) -> "tuple[Family, ModelConfig]":
    """Return the family and the model config of a Hugging Face folder. Print a note that names the ignored keys."""
    from archlab.families.registry import find_family  # imports the modules of all families, which presets do not need

    file = folder / CONFIG
    values = read_text_values(folder)
    family = find_family(values.get("model_type"), f"{file}: model_type")
    _check_architectures(values.get("architectures"), family, str(file))
    config, ignored = family.read(values, str(file))
    if family.tied_by_weights and has_weights(folder):
        config = _with_head_of_weights(config, family, folder)
    if ignored:
        note_once(f"{file}: ignored keys that do not change the model: {', '.join(ignored)}")
    known = multimodal(folder)
    if known is not None and known.alternatives:
        family = replace(family, alternatives=known.alternatives)
    return family.with_factors(values, str(file)), config


def _with_head_of_weights(config: ModelConfig, family: "Family", folder: Path) -> ModelConfig:
    """Return the config with a tied head if the weights contain no matrix for the head, or one that equals the
    embedding."""
    from archlab.hf.tensors import Tensors, are_equal  # imports torch, which most configs do not need

    tensors = Tensors(folder)
    head, embedding = (row.theirs for name in ("head.weight", "embedding.weight") for row in family.rows_of(name))
    tied = head not in tensors or embedding not in tensors or are_equal(tensors[head], tensors[embedding])
    return config.model_copy(update={"head": config.head.model_copy(update={"tied": tied})})


def _check_architectures(architectures: object, family: "Family", where: str) -> None:
    from archlab.families.registry import FAMILIES

    classes = {known.architecture: name for name, known in FAMILIES.items()}
    if not isinstance(architectures, list) or {family.architecture, *family.other_architectures} & {
        *map(str, architectures)
    }:
        return
    task = "the prediction of masked tokens" if family.architecture.endswith("ForMaskedLM") else "next-token prediction"
    for name in map(str, architectures):
        if name in classes:
            problem = f"{name}, a class of family {classes[name]}, but model_type is {family.model_type}"
        elif family.has_encoder and re.search(r"ForCausalLM|EncoderModel", name):
            problem = f"{name}, which has only an encoder or only a decoder"
        elif re.search(r"For(?!Causal)[A-Z]|WithValueHead", name):
            problem = f"{name}, a model for a task other than {task}"
        else:
            continue
        raise UserError(f"{where}: architectures names {problem}; allowed: {family.architecture}")


def read_raw_config(folder: Path) -> Raw:
    _, model = read_model_config(folder)
    return {"model": model.model_dump(mode="json")}
