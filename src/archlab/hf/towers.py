"""Text parts of multimodal models: which config values and tensors of a Hugging Face folder belong to the text, and
which belong to other towers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archlab.config.core.merge import Raw
from archlab.errors import UserError
from archlab.hf.folder import CONFIG, has_weights, read_json


@dataclass(frozen=True)
class Multimodal:
    """Class of multimodal models whose text part archlab loads."""

    architecture: str
    text_types: frozenset[str]
    """Allowed values of `model_type` in the text part of config.json."""
    no_effect: frozenset[str]
    """Keys of config.json, outside the text part, that do not change the logits of a text."""
    towers: tuple[str, ...] = ("vision_tower", "multi_modal_projector")
    """First words of the names of tensors that archlab leaves out. Newer files add `model.` before them."""


MULTIMODAL: Mapping[str, Multimodal] = {
    "gemma3": Multimodal(
        "Gemma3ForConditionalGeneration",
        frozenset({"gemma3_text"}),
        frozenset({"boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"}),
    ),
    "mistral3": Multimodal(
        "Mistral3ForConditionalGeneration",
        frozenset({"mistral", "ministral3"}),
        frozenset(
            {"image_token_index", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size",
             "vision_feature_layer"}
        ),
    ),
}  # fmt: skip
"""Mapping from `model_type` to the multimodal class."""

NAMES = {
    "language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}  # fmt: skip
"""Mapping from the prefixes of the text's tensors, in older and newer files, to those in files of the text family."""

SHARED = {
    "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config",
    "transformers_version",
}  # fmt: skip
"""Keys outside the text part that hold for the text. They replace those of the text part."""

_READ = {"model_type", "architectures", "text_config", "vision_config", "tie_word_embeddings", "initializer_range"}


def multimodal(folder: Path) -> Multimodal | None:
    """Return the multimodal class of a Hugging Face folder, or None if the folder holds a model of text alone."""
    return MULTIMODAL.get(str(read_json(folder / CONFIG).get("model_type")))


def read_text_values(folder: Path) -> Raw:
    """Return the values of config.json. For a multimodal model, return those of its text part.

    Raise UserError if a multimodal model has another class, another text family or an unknown key.
    """
    values, known = read_json(folder / CONFIG), multimodal(folder)
    if known is None:
        return values
    text = _text_values(values, known, str(folder / CONFIG))
    # The head belongs to the whole model, so the outer key decides whether it is tied. Files of older versions of
    # transformers lack it, and files of newer ones may.
    if (tied := values.get("tie_word_embeddings", _is_tied(folder))) is not None:
        text["tie_word_embeddings"] = tied
    return text


def _is_tied(folder: Path) -> bool | None:
    """Return whether the weights in a folder have no head of their own, or None if the folder has no weights."""
    if not has_weights(folder):
        return None
    from archlab.hf.tensors import Tensors  # loads torch

    return not any(name.endswith("lm_head.weight") for name in Tensors(folder, shapes_only=True))


def _text_values(values: Mapping[str, Any], known: Multimodal, where: str) -> Raw:
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise UserError(f"{where}: text_config is {text!r}; it must be a JSON object")
    if (name := text.get("model_type")) not in known.text_types:
        allowed = ", ".join(sorted(known.text_types))
        raise UserError(f"{where}: text_config.model_type is {name!r}; allowed: {allowed}")
    classes = values.get("architectures") or [known.architecture]
    if classes != [known.architecture]:
        raise UserError(f"{where}: architectures is {classes!r}; allowed: {known.architecture}")
    unknown = values.keys() - _READ - SHARED - known.no_effect
    if unknown:
        keys = ", ".join(sorted(unknown))
        raise UserError(f"{where}: archlab does not know these keys of {known.architecture}: {keys}")
    rest = {key: value for key, value in text.items() if key != "architectures"}
    return {**rest, **{key: values[key] for key in SHARED if values.get(key) is not None}}


def text_name(name: str, known: Multimodal) -> str | None:
    """Return the name of a tensor in files of the text family, or None if the tensor belongs to another tower.

    An unknown name is returned in parentheses, so that it fits no tensor of the text family.
    """
    if name.removeprefix("model.").partition(".")[0] in known.towers:
        return None
    full = (ours + name.removeprefix(theirs) for theirs, ours in NAMES.items() if name.startswith(theirs))
    return next(full, f"({name})")
