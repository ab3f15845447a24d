"""What a published model's folder says beside its weights: its config, its special tokens, its tokenizer."""

import re
from pathlib import Path

from archlab.config.core.merge import Raw
from archlab.config.core.text import note_once
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.families.registry import FAMILIES, find_family
from archlab.hf.family import Family
from archlab.hf.folder import CONFIG, companions, read_json
from archlab.hf.special_tokens import model_ids
from archlab.model.origin import Origin


def read_model_config(folder: Path) -> tuple[Family, ModelConfig]:
    """Return the family and the architecture of a Hugging Face folder. A note names the keys that were passed over."""
    file = folder / CONFIG
    values = read_json(file)
    family = find_family(values.get("model_type"), str(file))
    _check_architectures(values.get("architectures"), family, str(file))
    config, passed_over = family.read(values, str(file))
    if passed_over:
        note_once(f"{file}: passed over, because they do not change the model: {', '.join(passed_over)}")
    return family, config


def _check_architectures(named: object, family: Family, where: str) -> None:
    """Names of old or foreign code for the same model pass; another family's, or another task's, do not."""
    classes = {known.architecture: name for name, known in FAMILIES.items()}
    for name in map(str, named) if isinstance(named, list) and family.architecture not in named else ():
        if name in classes:
            found = f"{name}, of family {classes[name]}, but model_type is {family.model_type}"
        elif re.search(r"For(?!Causal)[A-Z]|WithValueHead", name):
            found = f"{name}, a model for another task than predicting the next token"
        else:
            continue
        raise UserError(f"{where}: architectures names {found}; allowed: {family.architecture}")


def read_raw_config(folder: Path) -> Raw:
    """The raw values of a config whose model is that of a Hugging Face folder."""
    _, model = read_model_config(folder)
    return {"model": model.model_dump(mode="json")}


def read_origin(folder: Path) -> Origin:
    """What goes along unread: the family's name, special tokens, the tokenizer's files."""
    family = read_json(folder / CONFIG).get("model_type")
    return Origin(str(family), model_ids(folder), companions(folder))
