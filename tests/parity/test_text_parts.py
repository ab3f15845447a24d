"""Text parts of multimodal checkpoints: logits compared with those of the whole transformers model on texts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
)

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config
from archlab.exchange.load import check_hf, load_hf
from archlab.exchange.save import save_pretrained
from archlab.hf.family import NO_EFFECT, differing
from archlab.hf.towers import MULTIMODAL

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 128, "pad_token_id": 0,
    "sliding_window": 4,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
NEWER = {
    "language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head.",
    "text_model.model.": "model.text_model.", "text_model.lm_head.": "lm_head.", "vqmodel.": "model.vqmodel.",
    "vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector.",
    "vision_embed_tokens.": "model.vision_embed_tokens.", "visual.": "model.visual.",
    **{f"model.{name}": f"model.language_model.{name}" for name in ("embed_tokens.", "layers.", "norm.")},
}  # fmt: skip


def gemma3(tied: bool) -> Gemma3ForConditionalGeneration:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {**TEXT, "model_type": "gemma3_text", "layer_types": kinds}
    vision = {**VISION, "model_type": "siglip_vision_model"}
    return Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, tie_word_embeddings=tied)
    )


def mistral3(tied: bool) -> Mistral3ForConditionalGeneration:
    text, vision = {**TEXT, "model_type": "mistral"}, {**VISION, "model_type": "pixtral", "head_dim": 8}
    return Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    )


def mistral3_growing(tied: bool) -> Mistral3ForConditionalGeneration:
    """Return a model whose text part is Ministral 3."""
    text, vision = {**TEXT, "model_type": "ministral3"}, {**VISION, "model_type": "pixtral", "head_dim": 8}
    return Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    )


MROPE: dict[str, Any] = {"type": "mrope", "mrope_section": [2, 1, 1]}
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 0, 0],
                        "partial_rotary_factor": 0.25, "mrope_interleaved": True},
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
}  # fmt: skip
VISUAL: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32, "intermediate_size": 24,
    "num_position_embeddings": 16,
}  # fmt: skip
GEMMA_4: dict[str, Any] = {
    "sliding_window": 4, "global_head_dim": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "final_logit_softcapping": 0.5,
}  # fmt: skip
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "emu3": (
        {"rms_norm_eps": 1e-2},
        {"vocabulary_map": {"<image>": 5}, "vq_config": {
            "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "codebook_size": 8, "hidden_size": 32,
            "attn_resolutions": [1],
        }},
    ),
    "fuyu": ({"model_type": "persimmon"}, {"patch_size": 4, "image_size": 8}),
    "gemma4": (
        {**GEMMA_4, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
        {"vision_config": {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 16,
         }, "audio_config": {
             "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "subsampling_conv_channels": [8, 4],
             "output_proj_dims": 16,
         }},
    ),
    "gemma4_unified": (
        GEMMA_4,
        {"vision_config": {"mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 16, "patch_size": 4},
         "audio_config": {"audio_embed_dim": 16}},
    ),
    "got_ocr2": ({"model_type": "qwen2"}, {"vision_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64, "mlp_dim": 16,
        "output_channels": 8, "global_attn_indexes": [0],
    }}),
    "llama4": (
        {"model_type": "llama4_text", "num_local_experts": 2, "intermediate_size_mlp": 40, "attention_chunk_size": 8},
        {"vision_config": {
            **VISION, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
        }},
    ),
    "qwen2_vl": (
        {"rope_parameters": {**MROPE, "rope_theta": 50.0}, "rms_norm_eps": 1e-2},
        {"vision_config": {**VISUAL, "hidden_size": 32, "embed_dim": 16}},
    ),
    "qwen2_5_vl": (
        {"rope_scaling": MROPE, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4},
        {"vision_config": {**VISUAL, "fullatt_block_indexes": [0]}},
    ),
    "qwen3_vl": (
        {"rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]}},
        {"vision_config": {**VISUAL, "deepstack_visual_indexes": [0]}},
    ),
    "qwen3_vl_moe": (
        {"rope_parameters": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
         "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "mlp_only_layers": [1],
         "attention_bias": True},
        {"vision_config": {**VISUAL, "deepstack_visual_indexes": [0]}},
    ),
    "qwen3_5": (DELTA, {"vision_config": VISUAL}),
    "qwen3_5_moe": (DELTA | EXPERTS, {"vision_config": VISUAL}),
}  # fmt: skip
"""Values of the text part, and of the other parts, by `model_type`."""


UNKNOWN = {
    "fuyu": {"head_dim", "num_key_value_heads"}, "got_ocr2": {"head_dim"}, "qwen2_vl": {"head_dim"},
    "qwen2_5_vl": {"head_dim"},
}  # fmt: skip
"""Keys of TEXT that a class does not have."""

NEEDED = {"gemma4": {"hidden_size_per_layer_input": 0}}
"""Keys without which archlab refuses the class's defaults."""


def maker(model_type: str) -> Callable[[bool], PreTrainedModel]:
    own, others = PARTS[model_type]

    def make(tied: bool) -> PreTrainedModel:
        unknown = {"sliding_window", *UNKNOWN.get(model_type, ())}
        text = {**{key: value for key, value in TEXT.items() if key not in unknown}, **own}
        # The class of Llama 4 reads the key of the text. The others read the key of the whole model.
        text, whole = (text | {"tie_word_embeddings": tied}, not tied) if model_type == "llama4" else (text, tied)
        config = CONFIG_MAPPING[model_type](text_config=text, tie_word_embeddings=whole, **others)
        return AutoModelForImageTextToText.from_config(config)

    make.__name__ = model_type
    return make


MAKERS = [gemma3, mistral3, mistral3_growing, *map(maker, PARTS)]


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file, metadata={"format": "pt"})


def newer(name: str) -> str:
    return next((to + name.removeprefix(old) for old, to in NEWER.items() if name.startswith(old)), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", ["older", "newer"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_logits_equal_those_of_the_whole_model(make, tied, names, dtype, tmp_path):
    torch.manual_seed(0)
    made = make(tied)
    if names == "newer" and made.config.model_type == "llama4":
        pytest.skip("its files always have the older names")
    made.save_pretrained(tmp_path)
    if names == "newer":
        rewrite(tmp_path, lambda tensors: {newer(name): tensor for name, tensor in tensors.items()})
    whole = make(tied).from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager").eval()
    ids = torch.randint(1, 64, (2, 20))
    with torch.no_grad():
        expected, logits = whole(input_ids=ids).logits, load_hf(tmp_path, dtype)(ids)
    # Logits are below 1, and bfloat16 has 8 bits. Gemma 4 does not divide scores, so rounding changes its weights more:
    # the whole model in bfloat16 is up to 0.027 away from float32, and archlab up to 0.015.
    rounding = 2e-2 if made.config.model_type.startswith("gemma4") else 1e-2
    tolerance = 1e-6 if dtype == torch.float32 else rounding
    torch.testing.assert_close(logits.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("tied", [True, False])
def test_without_the_key_the_head_is_tied_if_the_weights_have_none(tied, tmp_path):
    """Mistral Small 3.1 has no key, and a head of its own."""
    torch.manual_seed(0)
    whole = mistral3(tied).eval()
    whole.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in values.items() if key != "tie_word_embeddings"}))
    ids = torch.randint(1, 64, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(load_hf(tmp_path)(ids), whole(input_ids=ids).logits, atol=1e-6, rtol=1e-6)


def test_a_note_says_which_towers_are_left_out(tmp_path, capsys):
    model = mistral3(True)
    model.save_pretrained(tmp_path)
    load_hf(tmp_path)
    towers = [*model.model.vision_tower.parameters(), *model.model.multi_modal_projector.parameters()]
    size = sum(tensor.numel() for tensor in towers)
    expected = f"left out vision_tower and multi_modal_projector: {len(towers)} tensors with {size:,} parameters"
    assert expected in capsys.readouterr().err


def test_an_unknown_tensor_is_surplus(tmp_path):
    mistral3(True).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {**tensors, "audio_tower.weight": torch.ones(2)})
    assert check_hf(tmp_path) == ["(audio_tower.weight)  surplus"]


def test_a_folder_without_the_text_is_refused(tmp_path):
    mistral3(True).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {name: x for name, x in tensors.items() if "language_model" not in name})
    with pytest.raises(UserError, match=r"embed_tokens\.weight  missing"):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": None}, "text_config is None"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type is 'llama'; allowed: ministral3, mistral"),
        ({"architectures": ["Mistral3Model"]}, "allowed: Mistral3ForConditionalGeneration"),
        ({"new_option": 1}, "does not know these keys .*: new_option"),
    ],
)
def test_other_configs_are_refused(change, message, tmp_path):
    mistral3(True).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        load_hf(tmp_path)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "fuyu"])
@pytest.mark.parametrize("has_text_config", [True, False])
def test_older_files_have_the_keys_of_the_text_outside(model_type, has_text_config, tmp_path):
    """Some of them have both, as Fuyu."""
    torch.manual_seed(0)
    maker(model_type)(False).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    text = {key: value for key, value in values["text_config"].items() if key != "model_type"}
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": MROPE if "mrope_section" in rope else None}
    inside = {"text_config": text | {"model_type": values["text_config"]["model_type"]}} if has_text_config else {}
    file.write_text(json.dumps({key: v for key, v in values.items() if key != "text_config"} | text | inside))
    whole, ids = AutoModelForImageTextToText.from_pretrained(tmp_path).eval(), torch.randint(1, 64, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(load_hf(tmp_path)(ids), whole(input_ids=ids).logits, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_type", PARTS)
def test_a_missing_key_of_the_text_has_the_default_of_its_class(model_type, tmp_path):
    config = maker(model_type)(False).config
    values, file = config.to_dict() | {"architectures": None}, tmp_path / "config.json"

    def read(text: dict[str, Any]) -> ModelConfig:
        file.write_text(json.dumps(values | {"text_config": text}))
        return read_model_config(tmp_path)[1]

    type_ = {"model_type": config.text_config.model_type}
    whole = {**type(config.text_config)().to_dict(), "pad_token_id": None, **NEEDED.get(model_type, {})}
    needed, compared = {"hidden_size", "vocab_size", "num_hidden_layers"}, 0
    for key in whole.keys() - NO_EFFECT - needed:
        try:
            found = read({name: value for name, value in whole.items() if name != key} | type_)
        except UserError as error:
            is_needed = key in NEEDED.get(model_type, {})
            assert is_needed or f"{key} is missing" in str(error)  # noqa: PT017 - most are not
            continue
        assert differing(found, read(whole)) == {}, key
        compared += 1
    assert compared > 3


def test_common_keys_outside_the_text_are_ignored(tmp_path):
    maker("qwen3_5")(False).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    others = {"_name_or_path": "Qwen/Qwen3.5-9B", "unsloth_fixed": True, "use_cache": True, "model_max_length": 512}
    file.write_text(json.dumps(json.loads(file.read_text()) | others))
    assert check_hf(tmp_path) == []


def test_layers_for_multi_token_prediction_are_left_out(tmp_path):
    torch.manual_seed(0)
    maker("qwen3_5")(False).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {**tensors, "mtp.layers.0.mlp.up_proj.weight": torch.ones(48, 32)})
    assert check_hf(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 48}, "does not know these keys of Qwen2VLForConditionalGeneration: hidden_size"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false, but true in text_config"),
    ],
)
def test_a_contradiction_between_the_text_and_the_whole_model_is_refused(change, message, tmp_path):
    maker("qwen2_vl")(True).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    values["text_config"]["tie_word_embeddings"] = True
    file.write_text(json.dumps(values))
    assert check_hf(tmp_path) == []
    file.write_text(json.dumps(values | change))
    with pytest.raises(UserError, match=message):
        load_hf(tmp_path)


@pytest.mark.parametrize("model_type", PARTS)
def test_the_text_part_is_saved_as_its_family(model_type, tmp_path):
    torch.manual_seed(0)
    maker(model_type)(False).save_pretrained(tmp_path / "whole")
    ours, ids = load_hf(tmp_path / "whole"), torch.randint(1, 64, (2, 20))
    written = save_pretrained(ours, tmp_path / "text")
    assert written in MULTIMODAL[model_type].text_types.values()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-6, rtol=1e-6)


def test_experts_of_qwen3_vl_are_read_in_both_layouts(tmp_path):
    """Published files have each matrix as [in, out]. transformers also reads [out, in]."""
    torch.manual_seed(0)
    maker("qwen3_vl_moe")(False).save_pretrained(tmp_path)
    whole, ids = AutoModelForImageTextToText.from_pretrained(tmp_path).eval(), torch.randint(1, 64, (2, 20))
    with torch.no_grad():
        expected = whole(input_ids=ids).logits
        shapes = set()
        for _ in range(2):
            torch.testing.assert_close(load_hf(tmp_path)(ids), expected, atol=1e-6, rtol=1e-6)
            shapes |= {
                x.shape for name, x in load_file(tmp_path / "model.safetensors").items() if "experts.down" in name
            }
            rewrite(tmp_path, lambda tensors: {
                name: x.mT.contiguous() if ".experts." in name else x for name, x in tensors.items()
            })  # fmt: skip
    assert shapes == {(4, 24, 32), (4, 32, 24)}


@pytest.mark.parametrize(
    ("make", "key", "allowed", "value"),
    [
        (maker("qwen3_vl_moe"), "norm_topk_prob", True, False),
        (maker("qwen3_vl_moe"), "use_sliding_window", False, True),
        (maker("qwen3_vl"), "use_sliding_window", False, True),
        (gemma3, "final_logit_softcapping", None, 5.0),
    ],
)
def test_a_key_of_the_text_that_the_whole_model_does_not_read_is_refused(make, key, allowed, value, tmp_path):
    """transformers gives the same logits with both values."""
    make(False).save_pretrained(tmp_path)
    file, ids, logits = tmp_path / "config.json", torch.arange(1, 21)[None], []
    values = json.loads(file.read_text())
    for setting in (allowed, value):
        values["text_config"] |= {key: setting, "sliding_window": 4}
        file.write_text(json.dumps(values))
        with torch.no_grad():
            logits.append(AutoModelForImageTextToText.from_pretrained(tmp_path).eval()(input_ids=ids).logits)
        if setting == value:
            with pytest.raises(UserError, match=re.escape(f"text_config.{key} is {value}; allowed: {allowed}")):
                load_hf(tmp_path)
        else:
            assert check_hf(tmp_path) == []
    torch.testing.assert_close(*logits, atol=0, rtol=0)
