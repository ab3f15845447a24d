"""Convolution of OLMo Hybrid, which files contain in three parts; and its position encoding, which may be absent."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from tests.parity.cases.olmo_hybrid import CASES
from tests.parity.tiny import TOKENS, tiny_model

CONV = "model.layers.0.linear_attn.{}_conv1d.weight"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a folder of the first case with parts of the published sizes: 16 query, 16 key and 24 value rows."""
    tiny_model(CASES[0]).save_pretrained(tmp_path / "theirs")
    save_pretrained(load_hf(tmp_path / "theirs"), tmp_path / "published")
    return tmp_path / "published"


def test_parts_of_other_sizes_are_the_same_convolution(published: Path) -> None:
    """transformers saves parts of almost equal size: 19, 19 and 18 rows."""
    folders = published.parent / "theirs", published
    tensors = [load_file(folder / "model.safetensors") for folder in folders]
    sizes = [[len(own[CONV.format(part)]) for part in "qkv"] for own in tensors]
    assert sizes == [[19, 19, 18], [16, 16, 24]]
    with torch.no_grad():
        first, second = (load_hf(folder)(TOKENS) for folder in folders)
    assert torch.equal(first, second)


def test_a_norm_has_its_published_name(published: Path) -> None:
    """transformers saves it as feedforward_layer_norm. This is its name in layers with the gated delta rule only."""
    names = load_file(published / "model.safetensors").keys()
    assert "model.layers.1.post_attention_layernorm.weight" in names
    assert "model.layers.1.feedforward_layer_norm.weight" not in names


@pytest.mark.parametrize("shape", [(16, 1, 3), (24, 3), (24, 1, 4)])
def test_parts_of_wrong_sizes_are_named_with_the_right_ones(shape: tuple[int, ...], published: Path) -> None:
    tensors = load_file(published / "model.safetensors")
    save_file({**tensors, CONV.format("v"): torch.ones(shape)}, published / "model.safetensors")
    assert check_hf(published) == [f"{CONV.format('v')}  has shape {list(shape)}, expected [24, 1, 3]"]


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": None},
        {"rope_theta": None, "rope_parameters": None},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        {"rope_theta": 50.0, "rope_parameters": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
        {"rope_theta": 50.0},
        {},
    ],
)  # fmt: skip
def test_theta_is_null_without_position_encoding(values: dict[str, Any]) -> None:
    sizes = {key: value for key, value in CASES[0].hf.items() if key != "rope_parameters"} | values
    theta = transformers.OlmoHybridConfig(**sizes).rope_parameters["rope_theta"]
    found = FAMILIES["olmo_hybrid"].model_config(sizes, "config.json").position
    assert (found.kind, getattr(found, "theta", None)) == (("none", None) if theta is None else ("rope", theta))


def test_a_type_of_rope_without_theta_is_refused() -> None:
    """transformers cannot build such a model."""
    values = {**CASES[0].hf, "rope_parameters": {"rope_type": None}}
    with pytest.raises(UserError, match="rope_type is None"):
        FAMILIES["olmo_hybrid"].model_config(values, "config.json")
