"""config.json of Llama-like families, in the format of older published files and of transformers 5."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import archlab
from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import DynamicNTK
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.families.registry import find_family
from archlab.hf.family import differing
from tests.parity.cases import CASES
from tests.parity.tiny import SMALL, Case

FAMILIES = (
    "mistral", "ministral", "qwen2", "qwen3", "phi3", "olmo2", "olmo3", "granite", "smollm3", "olmo", "exaone4",
    "seed_oss", "arcee", "apertus", "hunyuan_v1_dense", "nanochat", "cwm", "ernie4_5",
    "mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "glm4_moe", "ernie4_5_moe",
    "minimax_m2", "llama4_text", "solar_open", "exaone_moe", "hy_v3", "hyperclovax", "vaultgemma",
    "internlm3", "flex_olmo", "hunyuan_v1_moe",
    "afmoe", "granitemoehybrid",
)  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 5e5}

MINE = [
    # OLMo 3's older files have one theta. Files with two are tested below.
    *(case for case in CASES if case.model_type in FAMILIES and case.model_type != "olmo3"),
    Case("olmo3", "yarn", {
        **SMALL, "rope_parameters": {"sliding_attention": PLAIN, "full_attention": {**YARN, "rope_theta": 5e5}},
    }),
    Case("olmo3", "plain", {**SMALL, "num_hidden_layers": 5, "sliding_window": 8}),
]  # fmt: skip


def written_by_transformers(model_type: str, hf: dict[str, Any]) -> dict[str, Any]:
    return json.loads(transformers.CONFIG_MAPPING[model_type](**hf).to_json_string())


def read(model_type: str, values: dict[str, Any]) -> ModelConfig:
    return find_family(model_type, "config.json").model_config(values, "config.json")


def older(case: Case) -> dict[str, Any]:
    """Return the values in the format of files before transformers 5."""
    out = written_by_transformers(case.model_type, case.hf)
    rope = out.pop("rope_parameters")
    rope = dict(rope.get("full_attention", rope))
    out["rope_theta"] = rope.pop("rope_theta")
    if (
        part := rope.pop("partial_rotary_factor", 1.0)
    ) != 1.0 and "rotary_dim" not in out:  # `rotary_dim` says the same
        out["partial_rotary_factor"] = part
    kind = rope.pop("rope_type")
    if case.model_type == "phi3":
        del out["original_max_position_embeddings"]
        if kind == "longrope":
            out["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
            kind = "su"
    key = "rope_type" if case.model_type == "olmo3" else "type"  # transformers 5 ignores `type` for OLMo 3
    out["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    for derived in {"layer_types", "no_rope_layers"} - set(case.hf):
        out.pop(derived, None)
    if case.model_type in ("qwen2", "qwen3") and not out["use_sliding_window"]:
        out["sliding_window"] = 4096
    return out


@pytest.mark.parametrize("case", MINE, ids=lambda case: f"{case.model_type}-{case.name}")
def test_the_older_format_gives_the_same_model(case: Case) -> None:
    values = written_by_transformers(case.model_type, case.hf)
    assert "rope_parameters" in values
    assert read(case.model_type, older(case)) == read(case.model_type, values)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    """There are 32 heads, which every class's default number of key/value heads divides."""
    sparse = {**SMALL, "hidden_size": 512, "num_attention_heads": 32, "num_hidden_layers": 4}
    sparse.pop("num_key_value_heads", None)
    whole = written_by_transformers(model_type, sparse)
    assert not differing(read(model_type, {"model_type": model_type, **sparse}), read(model_type, whole))


def test_llama_4_has_a_number_above_0_for_true() -> None:
    values = written_by_transformers("llama4_text", SMALL)
    assert values["attn_temperature_tuning"] is True
    assert read("llama4_text", values | {"attn_temperature_tuning": 4}) == read("llama4_text", values)


def test_a_null_window_means_none_and_a_missing_window_means_the_default() -> None:
    values = written_by_transformers("mistral", {**SMALL, "sliding_window": None})
    assert read("mistral", values).attention.window is None
    del values["sliding_window"]
    assert read("mistral", values).attention.window == 4096


def test_hunyuan_alpha_enlarges_theta() -> None:
    alpha = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    values = {**SMALL, "head_dim": 16, "rope_theta": 1e4, "rope_scaling": alpha}
    position = read("hunyuan_v1_dense", values).position
    assert position.kind == "rope"
    assert (position.theta, position.scaling.kind) == (pytest.approx(1e4 * 1000 ** (16 / 14)), "none")


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear"},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8},
        {"rope_type": "yarn", "original_max_position_embeddings": 8},
        {"rope_type": "yarn", "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        {"rope_type": "yarn", "attention_factor": 1.2},
    ],
    ids=str,
)
def test_a_scaling_with_factor_1_is_the_same_as_in_transformers(scaling: dict[str, Any], tmp_path: Path) -> None:
    """It means no scaling, unless it multiplies cos and sin or has lists of factors."""
    values = {**SMALL, "rope_scaling": {**scaling, "factor": 1.0}, "max_position_embeddings": 16}
    theirs = LlamaForCausalLM(LlamaConfig(**values)).eval()
    theirs.save_pretrained(tmp_path)
    ours, tokens = archlab.from_pretrained(tmp_path), torch.arange(14)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits)
    stretches = scaling["rope_type"] == "longrope" or "attention_factor" in scaling
    assert isinstance(ours.config.position, Rope)
    assert (ours.config.position.scaling.kind == "none") == (not stretches)


def test_scalings_of_rope_begin_at_the_default_length_of_the_class() -> None:
    """A file without `max_position_embeddings` has that of the class, in the scaling, too."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    values = LlamaConfig(**SMALL, rope_parameters=scaling).to_dict()
    del values["max_position_embeddings"]
    theirs, ours = LlamaForCausalLM(LlamaConfig.from_dict(values)), read("llama", values)
    assert ours.max_seq_len == theirs.config.max_position_embeddings == 2048
    assert isinstance(ours.position, Rope)
    longest = theirs.model.rotary_emb.original_max_seq_len
    assert ours.position.scaling == DynamicNTK(factor=2.0, original_max_seq_len=longest)


LFM2: dict[str, Any] = {
    "block_dim": 32, "block_mlp_init_scale": 1.0, "block_norm_eps": 1e-2, "block_out_init_scale": 1.0,
    "block_use_swiglu": True, "block_use_xavier_init": True, "conv_dim": 32, "conv_dim_out": 32,
    "conv_use_xavier_init": True, "num_heads": 4, "use_pos_enc": True, "theta": 1e6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("qwen3_next", {"use_sliding_window": False}),
        ("lfm2", LFM2),
        (
            "ernie4_5_moe",
            {
                "use_rmsnorm": True,
                "moe_capacity": [64, 64, 64],
                "moe_gate": "topk",
                "moe_use_aux_free": True,
                "num_nextn_predict_layers": 1,
            },
        ),
        (
            "minimax_m2",
            {
                "layernorm_full_attention_beta": 1.0,
                "layernorm_linear_attention_beta": 1.0,
                "layernorm_mlp_beta": 1.0,
                "shared_moe_mode": "sigmoid",
                "mlp_intermediate_size": 8192,
            },
        ),
        ("llama", {"is_llama_config": True, "rope_interleaved": False, "pruned_heads": {}, "use_bfloat16": False}),
        ("llama", {"max_length": 20, "do_sample": True, "temperature": 0.6, "top_k": 50, "repetition_penalty": 1.0}),
        ("mistral", {"_attn_implementation_autoset": True, "unsloth_fixed": True, "neftune_noise_alpha": 5}),
    ],
)
def test_redundant_keys_are_understood(model_type: str, more: dict[str, Any]) -> None:
    """These keys are in published files, but transformers' class reads none of them."""
    values = written_by_transformers(model_type, next(case.hf for case in CASES if case.model_type == model_type))
    assert not set(more) & set(values)
    assert read(model_type, {**values, **more}) == read(model_type, values)


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("deepseek_v3", "norm_topk_prob"), ("deepseek_v3", "rope_interleave"), ("falcon", "parallel_attn"),
        ("falcon", "multi_query"),
    ],
)  # fmt: skip
def test_a_null_switch_is_off_although_a_missing_one_is_on(model_type: str, key: str) -> None:
    """transformers keeps the null, which counts as false in its `if`."""
    values = next(case.hf for case in CASES if case.model_type == model_type)
    null, off, on = (written_by_transformers(model_type, {**values, key: switch}) for switch in (None, False, True))
    missing = {name: value for name, value in on.items() if name != key}
    assert not transformers.CONFIG_MAPPING[model_type](**null).to_dict()[key]
    assert read(model_type, {**null, key: None}) == read(model_type, off) != read(model_type, missing)


def test_older_names_of_layer_types_are_understood() -> None:
    case = next(case for case in CASES if case.model_type == "granitemoehybrid")
    older = case.hf | {"layer_types": ["mamba", "attention"] * 2}
    newer = written_by_transformers(case.model_type, older)
    assert newer["layer_types"] == ["linear_attention", "full_attention"] * 2
    assert read(case.model_type, newer | {"layer_types": older["layer_types"]}) == read(case.model_type, newer)


SLIDES = ["sliding_attention"] * 3


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("llama", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 3.0}}, "rope_scaling.alpha"),
        ("llama", {"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_type"),
        ("qwen2", {"use_sliding_window": False, "layer_types": SLIDES}, "use_sliding_window"),
        ("ministral", {"sliding_window": None, "layer_types": SLIDES}, "sliding_window"),
        ("mistral", {"layer_types": SLIDES[:2]}, "layer_types"),
        ("cwm", {"rope_theta": 100.0}, "rope_theta"),
        ("mistral", {"attention_sinks": 4}, "attention_sinks"),
        ("phi3", {"lm_head_bias": True}, "lm_head_bias"),
        ("olmo3", {"rope_theta": 1e4}, "rope_theta"),
        ("olmo3", {"rope_parameters": {"full_attention": {**YARN, "truncate": False}}}, "truncate"),
        ("olmo3", {"rope_scaling": {"type": "yarn", "factor": 8.0}}, "rope_scaling.type"),
        (
            "olmo3",
            {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}, "original_max_position_embeddings": 16},
            "original_max_position_embeddings",
        ),
        ("apertus", {"qk_norm": False}, "qk_norm"),
        ("hunyuan_v1_dense", {"num_experts": 8}, "num_experts"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("smollm3", {"layer_types": SLIDES}, "sliding_window"),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
        ("apertus", {"rope_theta": 1e4}, "rope_theta"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla"),
        ("granite", {"num_local_experts": 4}, "num_local_experts"),
        # transformers uses hidden_act for the mixer's convolution as well
        ("qwen3_next", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3_next", {"use_sliding_window": True}, "use_sliding_window"),
        # not read by the published code
        ("qwen3_moe", {"use_sliding_window": True, "layer_types": ["full_attention"] * 3}, "layer_types"),
        ("qwen3_moe", {"layer_types": SLIDES}, "layer_types"),
        # a window of 0, which transformers treats as a window
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0, "max_window_layers": 0}, "sliding_window"),
        ("ernie4_5_moe", {"moe_use_aux_free": False}, "moe_use_aux_free"),
        ("ernie4_5_moe", {"moe_gate": "sinkhorn"}, "moe_gate"),
        ("minimax_m2", {"layernorm_mlp_beta": 0.5}, "layernorm_mlp_beta"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu"),
        ("lfm2", {"use_pos_enc": False}, "use_pos_enc"),
        ("lfm2", {"theta": 1e4}, "theta"),
        ("lfm2", {"num_heads": 2}, "num_heads"),
        ("lfm2_moe", {}, "layer_types is missing"),
        ("bamba", {"mamba_n_heads": 4, "hidden_act": "gelu"}, "hidden_act"),
        ("bamba", {"mamba_n_heads": 4, "partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ("bamba", {"mamba_n_heads": 4, "mamba_d_head": 8}, "mamba_expand"),
        ("granitemoehybrid", {"mamba_n_heads": 4, "position_embedding_type": "alibi"}, "position_embedding_type"),
    ],
)
def test_an_unsupported_value_is_refused_by_name(model_type: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read(model_type, {**SMALL, **changes})
