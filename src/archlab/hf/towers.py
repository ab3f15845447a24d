"""Text parts of multimodal models: which config values and tensors of a Hugging Face folder belong to the text, and
which belong to other towers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archlab.config.core.merge import Raw
from archlab.errors import UserError
from archlab.hf.family import NO_EFFECT, OTHER_TOOLS
from archlab.hf.folder import CONFIG, has_weights, read_json
from archlab.hf.mixture import all_experts_either_way
from archlab.hf.weight_map import Row

NAMES = {
    "language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}  # fmt: skip
"""Mapping from the prefixes of the text's tensors, in older and newer files, to those in files of the text family."""


@dataclass(frozen=True)
class Multimodal:
    """Class of multimodal models whose text part archlab loads."""

    architecture: str
    text_types: Mapping[str, str]
    """Allowed values of `model_type` in the text part of config.json, and the `model_type` of the family that computes
    the same."""
    no_effect: frozenset[str]
    """Keys of config.json, outside the text part, that do not change the logits of a text."""
    towers: tuple[str, ...] = ("vision_tower", "multi_modal_projector")
    """First words of the names of tensors that archlab leaves out. Newer files add `model.` before them."""
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    """Mapping from the prefixes of the text's tensors to those in files of the text family."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys of the text part, if they differ from those in the text family."""
    older_type: str | None = None
    """`model_type` of the text in older files, whose keys of the text are not in `text_config`. None if there are no
    such files."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Mapping from other names of keys of the text part to their usual names."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values that the published code always uses for keys of the text family. Another value in a file is an error."""
    alternatives: Sequence[Row] = ()
    """Rows that replace those of the text family with this name, if files have another layout."""
    text_ties: bool = False
    """Whether the key in the text part decides if the head is tied. In other classes, the key outside decides."""


_IMAGE_IDS = frozenset(
    {"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id"}
)
_GEMMA_4: Any = {
    "no_effect": frozenset(
        {"audio_config", "audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_index", "eoi_token_id",
         "image_token_id", "video_token_id"}
    ),
    "towers": ("vision_tower", "audio_tower", "vision_embedder", "embed_vision", "embed_audio"),
}  # fmt: skip
_QWEN2_VL: Any = {
    "no_effect": _IMAGE_IDS,
    "towers": ("visual",),
    "names": {**NAMES, "model.": "model."},
    "defaults": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_window_layers": 80},
}

MULTIMODAL: Mapping[str, Multimodal] = {
    "emu3": Multimodal(
        "Emu3ForConditionalGeneration",
        {"emu3_text_model": "llama"},
        frozenset({"image_token_id", "vocabulary_map", "vq_config"}),
        towers=("vqmodel",),
        names={name.replace("language_model", "text_model"): ours for name, ours in NAMES.items()},
        defaults={
            "rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 9216,
        },
    ),
    "fuyu": Multimodal(
        "FuyuForCausalLM",
        {"persimmon": "persimmon"},
        frozenset({"image_size", "image_token_id", "num_channels", "patch_size"}),
        towers=("vision_embed_tokens",),
        older_type="persimmon",
    ),
    "gemma3": Multimodal(
        "Gemma3ForConditionalGeneration",
        {"gemma3_text": "gemma3_text"},
        frozenset({"boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"}),
        fixed={"final_logit_softcapping": None},  # the class for text alone applies it
    ),
    "gemma4": Multimodal("Gemma4ForConditionalGeneration", {"gemma4_text": "gemma4_text"}, **_GEMMA_4),
    "gemma4_unified": Multimodal(
        "Gemma4UnifiedForConditionalGeneration", {"gemma4_unified_text": "gemma4_unified_text"}, **_GEMMA_4
    ),
    "got_ocr2": Multimodal(
        "GotOcr2ForConditionalGeneration",
        {"qwen2": "qwen2"},
        frozenset({"image_seq_length", "image_token_id", "image_token_index"}),
    ),
    "llama4": Multimodal(
        "Llama4ForConditionalGeneration",
        {"llama4_text": "llama4_text"},
        frozenset({"boi_token_index", "eoi_token_index", "image_token_index"}),
        towers=("vision_model", "multi_modal_projector"),
        text_ties=True,
    ),
    "mistral3": Multimodal(
        "Mistral3ForConditionalGeneration",
        {"ministral3": "ministral3", "mistral": "mistral"},
        frozenset(
            {"image_token_index", "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size",
             "vision_feature_layer"}
        ),
    ),
    "qwen2_vl": Multimodal(
        "Qwen2VLForConditionalGeneration", {"qwen2_vl_text": "qwen2"}, older_type="qwen2_vl_text", **_QWEN2_VL
    ),
    "qwen2_5_vl": Multimodal(
        "Qwen2_5_VLForConditionalGeneration", {"qwen2_5_vl_text": "qwen2"}, older_type="qwen2_5_vl_text", **_QWEN2_VL
    ),
    "qwen3_vl": Multimodal(
        "Qwen3VLForConditionalGeneration", {"qwen3_vl_text": "qwen3"}, _IMAGE_IDS, towers=("visual",),
        defaults={"rope_theta": 5e5, "max_position_embeddings": 128000}, fixed={"use_sliding_window": False},
    ),
    "qwen3_vl_moe": Multimodal(
        "Qwen3VLMoeForConditionalGeneration", {"qwen3_vl_moe_text": "qwen3_moe"}, _IMAGE_IDS, towers=("visual",),
        defaults={
            "rope_theta": 5e5, "num_key_value_heads": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
            "num_experts": 60, "max_position_embeddings": 128000,
        },
        aliases={"num_local_experts": "num_experts"},
        fixed={"norm_topk_prob": True, "use_sliding_window": False},
        alternatives=all_experts_either_way(
            "model.layers.{i}.mlp.experts.gate_up_proj", "model.layers.{i}.mlp.experts.down_proj"
        ),
    ),
    "qwen3_5": Multimodal(
        "Qwen3_5ForConditionalGeneration", {"qwen3_5_text": "qwen3_5_text"}, _IMAGE_IDS, towers=("visual",),
        names={**NAMES, "mtp.": "mtp."},
    ),
    "qwen3_5_moe": Multimodal(
        "Qwen3_5MoeForConditionalGeneration", {"qwen3_5_moe_text": "qwen3_5_moe_text"}, _IMAGE_IDS, towers=("visual",),
        names={**NAMES, "mtp.": "mtp."},
    ),
}  # fmt: skip
"""Mapping from `model_type` to the multimodal class."""

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
    if known.text_ties:
        return text
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
    classes = values.get("architectures") or [known.architecture]
    if classes != [known.architecture]:
        raise UserError(f"{where}: architectures is {classes!r}; allowed: {known.architecture}")
    text = values.get("text_config")
    if text is None and known.older_type:
        text = {k: v for k, v in values.items() if k not in _READ | known.no_effect or k == "tie_word_embeddings"}
        text["model_type"] = known.older_type
    if not isinstance(text, dict):
        raise UserError(f"{where}: text_config is {text!r}; it must be a JSON object")
    name = str(text.get("model_type"))
    if name not in known.text_types:
        allowed = ", ".join(sorted(known.text_types))
        raise UserError(f"{where}: text_config.model_type is {name!r}; allowed: {allowed}")
    # Some files repeat keys of the text outside it.
    others = values.keys() - _READ - SHARED - known.no_effect - NO_EFFECT - OTHER_TOOLS
    unknown = {key for key in others if key not in text or values[key] != text[key]}
    if unknown:
        keys = ", ".join(sorted(unknown))
        raise UserError(f"{where}: archlab does not know these keys of {known.architecture}: {keys}")
    if known.older_type and text.get("tie_word_embeddings") and values.get("tie_word_embeddings") is False:
        raise UserError(f"{where}: tie_word_embeddings is false, but true in text_config; allowed: the same value")
    rest = {key: value for key, value in text.items() if key != "architectures"}
    rest |= {usual: rest.pop(other) for other, usual in known.aliases.items() if other in rest and usual not in rest}
    rest = {**known.defaults, **rest, "model_type": known.text_types[name]}
    for key, value in known.fixed.items():
        if rest.setdefault(key, value) != value:
            raise UserError(
                f"{where}: text_config.{key} is {rest[key]!r}; allowed: {value!r}, which the published code always uses"
            )
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(rest.get(key), dict):
            rest[key] = _for_text(rest[key])
    return {**rest, **{key: values[key] for key in SHARED if values.get(key) is not None}}


def _for_text(rope: Raw) -> Raw:
    """Return RoPE values without those that divide its frequencies among time, height and width (M-RoPE). In a text,
    all three equal the position of the token."""
    plain = {key: value for key, value in rope.items() if key not in ("mrope_section", "mrope_interleaved")}
    return {
        key: "default" if key in ("rope_type", "type") and value == "mrope" else value for key, value in plain.items()
    }


def text_name(name: str, known: Multimodal) -> str | None:
    """Return the name of a tensor in files of the text family, or None if the tensor belongs to another tower.

    An unknown name is returned in parentheses, so that it fits no tensor of the text family.
    """
    if name.removeprefix("model.").partition(".")[0] in known.towers:
        return None
    full = (ours + name.removeprefix(theirs) for theirs, ours in known.names.items() if name.startswith(theirs))
    return next(full, f"({name})")
