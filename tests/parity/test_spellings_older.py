"""Folders of GPT-2, GPT-NeoX, Falcon and other old families as published, with other keys, names and buffers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.load import load_hf
from archlab.families.registry import find_family
from archlab.hf.family import differing
from tests.parity.cases import CASES
from tests.parity.test_families import gap
from tests.parity.tiny import Case, tiny_model

PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_ctx": 64, "summary_type": "cls_index", "task_specific_params": {"text-generation": {}}},
    "gpt_neox": {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "classifier_dropout": 0.1},
    "opt": {"activation_dropout": 0.0, "learned_embeddings": True, "scale_embeddings": False, "prefix": "</s>"},
    "gptj": {"rotary": True, "scale_attn_weights": True, "gradient_checkpointing": False},
    "falcon": {"apply_residual_connection_post_layernorm": False, "ff_factor": 4, "auto_map": {}},
    "bloom": {"masked_softmax_fusion": True, "offset_alibi": 100, "skip_bias_add": True, "n_inner": None},
    "mpt": {"init_config": {"name": "kaiming_normal_"}, "verbose": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b"},
    "gpt_bigcode": {"inference_runner": 0, "pad_key_length": True, "max_batch_size": None, "summary_type": "cls_index"},
    "gpt_neo": {"attention_dropout": 0, "resid_dropout": 0, "summary_use_proj": True},
    "openai-gpt": {"n_ctx": 64, "n_special": 0, "predict_special_tokens": True},
    "codegen": {"scale_attn_weights": True, "tokenizer_class": "GPT2Tokenizer"},
}
"""Keys of published files that transformers 5 does not write."""

MINE = [case for case in CASES if case.model_type in PUBLISHED]
EVERY_CASE = pytest.mark.parametrize("case", MINE, ids=lambda case: f"{case.model_type}-{case.name}")


def written_by_transformers(model_type: str, hf: dict[str, Any]) -> dict[str, Any]:
    return json.loads(transformers.CONFIG_MAPPING[model_type](**hf).to_json_string())


def read(model_type: str, values: dict[str, Any]) -> ModelConfig:
    return find_family(model_type, "config.json").model_config(values, "config.json")


def older(values: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Return the values in the format of files before transformers 5."""
    out = {**values, **PUBLISHED[model_type]}
    rope = dict(out.pop("rope_parameters", None) or {})
    if rope:
        names = {"gpt_neox": ("rotary_emb_base", "rotary_pct")}.get(model_type, ("rope_theta", "partial_rotary_factor"))
        out[names[0]] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            out[names[1]] = rope.pop("partial_rotary_factor")
        kind = rope.pop("rope_type")
        out["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    if model_type == "bloom":
        out |= {"n_embed": out.pop("hidden_size"), "num_attention_heads": out.pop("n_head")}
    return out


@EVERY_CASE
def test_the_older_format_gives_the_same_model(case: Case) -> None:
    values = written_by_transformers(case.model_type, case.hf)
    assert read(case.model_type, older(values, case.model_type)) == read(case.model_type, values)


@EVERY_CASE
def test_the_names_that_all_configs_share_are_understood(case: Case) -> None:
    config = transformers.CONFIG_MAPPING[case.model_type]
    values = written_by_transformers(case.model_type, case.hf)
    shared = {name: values.get(own) for name, own in config.attribute_map.items()}
    renamed = {key: value for key, value in values.items() if key not in config.attribute_map.values()} | shared
    assert read(case.model_type, renamed) == read(case.model_type, values)


@pytest.mark.parametrize("model_type", list(PUBLISHED))
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    known = {"vocab_size", "hidden_size", "d_model", "n_embd", "num_attention_heads", "n_heads", "n_head", "num_heads"}
    known |= {"num_hidden_layers", "n_layers", "n_layer", "num_layers", "intermediate_size", "n_positions"}
    own = set(written_by_transformers(model_type, {}))
    sizes = {"vocab_size": 61, "num_layers": 24, "n_layer": 24, "n_layers": 24, "num_hidden_layers": 24}
    sparse = {key: sizes.get(key, 512 if key in ("hidden_size", "d_model", "n_embd") else 4) for key in known & own}
    assert not differing(read(model_type, sparse), read(model_type, written_by_transformers(model_type, sparse)))


@pytest.mark.parametrize(
    ("model_type", "prefix", "buffers"),
    [
        ("gpt2", "transformer.", ("h.0.attn.bias", "h.0.attn.masked_bias")),
        ("openai-gpt", "transformer.", ("h.0.attn.bias",)),
        ("gpt_bigcode", "transformer.", ()),
        ("gptj", "transformer.", ("h.0.attn.bias", "h.0.attn.masked_bias")),
        ("gpt_neo", "transformer.", ("h.0.attn.attention.bias", "h.0.attn.attention.masked_bias")),
        ("codegen", "transformer.", ("h.0.attn.causal_mask",)),
        ("bloom", "transformer.", ()),
        ("mpt", "transformer.", ()),
        ("falcon", "transformer.", ("h.0.self_attention.rotary_emb.inv_freq",)),
        ("opt", "model.", ()),
        ("gpt_neox", "gpt_neox.", ("layers.0.attention.bias", "layers.0.attention.masked_bias")),
    ],
)
@pytest.mark.parametrize("bare", [True, False])
def test_old_files_have_other_names_and_extra_tensors(
    model_type: str, prefix: str, buffers: tuple[str, ...], bare: bool, tmp_path: Path
) -> None:
    case = next(case for case in MINE if case.model_type == model_type)
    model, tokens = tiny_model(case), torch.arange(3, 20)[None]
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file) | {f"{prefix}{name}": torch.ones(1, 1, 4, 4) for name in buffers}
    if bare:
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    with torch.no_grad():
        assert gap(load_hf(tmp_path)(tokens), model(tokens).logits) <= 1e-4


def test_falcons_alibi_is_rounded_as_published_beyond_bfloat16s_whole_numbers(tmp_path: Path) -> None:
    case = next(case for case in MINE if case.name == "rw-uneven-heads")
    model, tokens = tiny_model(case), torch.randint(3, 61, (1, 700), generator=torch.Generator().manual_seed(2))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert gap(load_hf(tmp_path)(tokens), model(tokens).logits) <= 1e-4


def test_bloom_with_both_keys_for_slices_is_refused() -> None:
    values = written_by_transformers("bloom", next(case.hf for case in MINE if case.model_type == "bloom"))
    assert read("bloom", {**values, "pretraining_tp": 2})
    assert read("bloom", {**values, "slow_but_exact": True})
    with pytest.raises(UserError, match="slow_but_exact"):
        read("bloom", {**values, "pretraining_tp": 2, "slow_but_exact": True})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gpt2", "add_cross_attention", True),
        ("gpt_bigcode", "add_cross_attention", True),
        ("gpt2", "hidden_size", 48),
        ("opt", "_remove_final_layer_norm", True),
        ("opt", "scale_embeddings", True),
        ("gpt_neox", "head_dim", 16),
        ("gptj", "rotary", False),
        ("gptj", "rotary_dim", 12),
        ("codegen", "n_head", 2),
        ("falcon", "num_ln_in_parallel_attn", 2),
        ("falcon", "partial_rotary_factor", 0.5),
        ("falcon", "ff_factor", 2),
        ("bloom", "hidden_act", "relu"),
        ("mpt", "expansion_ratio", 2),
        ("mpt", "logit_scale", "inv_sqrt_d_model"),
        ("mpt", "no_bias", False),
        ("mpt", "norm_type", "rmsnorm"),
        ("mpt", "learned_pos_emb", False),
        ("mpt", "attn_config", {"alibi": False}),
        ("mpt", "attn_config", {"alibi_bias_max": 16}),
        ("mpt", "attn_config", {"qk_ln": True}),
        ("mpt", "attn_config", {"rope": True}),
        ("gpt_neo", "attention_layers", ["local", "global"] * 2),
        ("gpt_neo", "attention_types", [[["global"], 3]]),
        ("openai-gpt", "afn", "gelu_new"),
    ],
)
def test_an_unsupported_value_is_refused_by_name(model_type: str, key: str, value: Any) -> None:
    case = next(case for case in MINE if case.model_type == model_type)
    values = written_by_transformers(model_type, case.hf)
    values.pop("rope_parameters", None)
    with pytest.raises(UserError, match=next(iter(value)) if isinstance(value, dict) else key):
        read(model_type, {**values, key: value})
