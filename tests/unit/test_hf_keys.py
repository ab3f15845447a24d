"""Keys of published config.json files: ignored silently, ignored with a note, or refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from archlab.cli import app
from archlab.config.core.text import note_once
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config
from archlab.families.registry import FAMILIES
from archlab.hf.family import NO_EFFECT, OTHER_TOOLS
from tests.parity.cases import CASES
from tests.parity.tiny import tiny_model
from tests.reference import grok_1  # noqa: F401 - makes grok-1 known to transformers

torch.set_num_threads(1)
ROWS = yaml.safe_load((Path(__file__).parent / "published_keys.yaml").read_text())
COMMON: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "intermediate_size": 48, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 48},
    "gpt_neox": {"intermediate_size": 48},
    "cohere2": {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt2": {},
    "qwen2": {"intermediate_size": 48, "num_key_value_heads": 2},
    "qwen3": {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8},
    "falcon_h1": {
        "intermediate_size": 48, "num_key_value_heads": 2, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
        "mamba_d_state": 8, "mamba_n_groups": 1,
    },
    "qwen3_5_text": {
        "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "jamba": {"intermediate_size": 48, "num_key_value_heads": 2, "num_experts": 2, "attn_layer_offset": 1},
    "falcon_mamba": {"state_size": 4, "num_attention_heads": None},
    "mamba": {"state_size": 4, "num_attention_heads": None},
    "deepseek_v3": {
        "intermediate_size": 48, "num_key_value_heads": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    },
    "bamba": {
        "intermediate_size": 48, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_state": 8,
        "attn_layer_indices": [1],
    },
    "hy_v3": {**MIXTURE, "head_dim": 8},
    "exaone_moe": {**MIXTURE, "sliding_window": 4},
    "solar_open": {
        "num_key_value_heads": 2, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "hyperclovax": {"intermediate_size": 48, "num_key_value_heads": 2},
    "recurrent_gemma": {"intermediate_size": 96, "block_types": ["recurrent", "attention"]},
}  # fmt: skip


def tiny(model_type: str) -> dict[str, Any]:
    """Return the config.json of a small model of the family, as transformers writes it."""
    made = CONFIG_MAPPING[model_type](**COMMON | SIZES[model_type]).to_dict()
    return made | {"architectures": [FAMILIES[model_type].architecture]}


def logits(values: dict[str, Any]) -> torch.Tensor:
    """Return the logits of transformers for a config.json, with random weights that depend on the seed only."""
    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        return model(torch.arange(3, 15)[None]).logits


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['type']} {row['key']}={str(row['value'])[:20]}")
def test_a_key_of_a_published_file(row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tiny(row["type"])
    values = plain | {row["key"]: row["value"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    note_once.cache_clear()
    code = app.main(["cost", str(tmp_path), "--json"])
    printed = capsys.readouterr()
    if row["does"] == "refused":
        assert code == 2
        assert row["key"] in printed.err
        return
    assert code == 0
    notes = f"note: {tmp_path}/config.json: ignored keys that do not change the model: {row['key']}\n"
    assert printed.err == (notes if row["does"] == "note" else "")
    torch.testing.assert_close(logits(values), logits(plain), rtol=0, atol=0)


def test_the_only_key_that_all_classes_read_without_declaring_it() -> None:
    """transformers reads `is_causal` from every config. If it is false, a token attends to later ones."""
    plain = tiny("llama")
    assert not torch.allclose(logits(plain | {"is_causal": False}), logits(plain))
    with pytest.raises(UserError, match="is_causal is False, which archlab cannot build; allowed: True"):
        FAMILIES["llama"].model_config(plain | {"is_causal": False}, "config.json")


@pytest.mark.parametrize("name", ["nemotron_h", "kimi_linear"])
def test_a_class_that_never_ties_its_head(name: str) -> None:
    """So a file that ties it is refused, because transformers would draw the missing head at random."""
    case = next(case for case in CASES if case.model_type == name)
    model: Any = tiny_model(replace(case, hf=case.hf | {"tie_word_embeddings": True}))
    assert not torch.equal(model.get_input_embeddings().weight, model.lm_head.weight)
    with pytest.raises(UserError, match="allowed: false, because the published class never ties the head"):
        FAMILIES[name].model_config(model.config.to_dict(), "config.json")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_that_a_class_declares_is_understood(name: str) -> None:
    """So the published code reads no key that archlab ignores because it is false or empty."""
    incomplete: dict[str, dict[str, Any]] = {
        "deepseek_v2": {"num_experts_per_tok": 2}, "glm4_moe": {"head_dim": 128},
        "cohere_compass_text": {"rope_parameters": {"full_attention": None}},
        "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
        "dbrx": {"attn_config": {"clip_qkv": 8, "rope_theta": 1e4}}, "lfm2_moe": {"layer_types": ["conv"] * 32},
        "gemma4_text": {"hidden_size_per_layer_input": 0},
    }  # fmt: skip
    declared = CONFIG_MAPPING[name](**incomplete.get(name, {})).to_dict()
    assert FAMILIES[name].read(declared, "config.json")[1] == []


def test_no_key_is_in_both_lists() -> None:
    assert not NO_EFFECT & OTHER_TOOLS


def test_a_note_is_given_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama") | {"num_labels": 2, "use_qk_norm": False}))
    for _ in range(2):
        read_model_config(tmp_path)
    assert capsys.readouterr().err.count("note: ") == 1
