"""Text parts of multimodal checkpoints: logits compared with those of the whole transformers model on texts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)

from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf

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
    "vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector.",
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


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file, metadata={"format": "pt"})


def newer(name: str) -> str:
    return next((to + name.removeprefix(old) for old, to in NEWER.items() if name.startswith(old)), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", ["older", "newer"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", [gemma3, mistral3, mistral3_growing])
def test_logits_equal_those_of_the_whole_model(make, tied, names, dtype, tmp_path):
    torch.manual_seed(0)
    make(tied).save_pretrained(tmp_path)
    if names == "newer":
        rewrite(tmp_path, lambda tensors: {newer(name): tensor for name, tensor in tensors.items()})
    whole = make(tied).from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager").eval()
    ids = torch.randint(1, 64, (2, 20))
    with torch.no_grad():
        expected, logits = whole(input_ids=ids).logits, load_hf(tmp_path, dtype)(ids)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2  # logits are below 1, and bfloat16 has 8 bits
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
