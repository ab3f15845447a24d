"""config.json of Gemma, Command R and others, in the format of older published files and of transformers 5."""

import json
from typing import Any

import pytest
import transformers

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.families.registry import find_family
from archlab.hf.family import differing
from tests.parity.cases import CASES
from tests.parity.tiny import Case

FAMILIES = (
    "gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "stablelm", "phi", "glm", "glm4", "nemotron", "starcoder2",
    "persimmon", "xglm", "biogpt", "helium",
)  # fmt: skip
MINE = [
    case for case in CASES
    if case.model_type in FAMILIES and "rope_parameters" in case.hf
    # Older files have no key for a scaling of sliding layers.
    and (case.model_type, case.name) != ("gemma3_text", "all-sliding")
]  # fmt: skip


def written_by_transformers(model_type: str, hf: dict[str, Any]) -> dict[str, Any]:
    return json.loads(transformers.CONFIG_MAPPING[model_type](**hf).to_json_string())


def read(model_type: str, values: dict[str, Any]) -> ModelConfig:
    return find_family(model_type, "config.json").model_config(values, "config.json")


def older(values: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return the values in the format of files before transformers 5."""
    out = {key: value for key, value in values.items() if key != "rope_parameters"}
    rope = dict(values["rope_parameters"])
    if case.model_type == "gemma3_text":
        out["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    out["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        out["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    key = "rope_type" if case.model_type == "gemma3_text" else "type"  # transformers 5 ignores `type` for Gemma 3
    out["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    if "layer_types" in values and "layer_types" not in case.hf:
        del out["layer_types"]
        out["sliding_window_pattern"] = case.hf["sliding_window_pattern"]
    return out


@pytest.mark.parametrize("case", MINE, ids=lambda case: f"{case.model_type}-{case.name}")
def test_the_older_format_gives_the_same_model(case: Case) -> None:
    values = written_by_transformers(case.model_type, case.hf)
    assert read(case.model_type, older(values, case)) == read(case.model_type, values)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    sparse = {
        "model_type": model_type, "vocab_size": 61, "hidden_size": 512, "intermediate_size": 48,
        "num_hidden_layers": 12, "num_attention_heads": 32, "max_position_embeddings": 64,
    }  # fmt: skip
    if model_type == "xglm":
        sparse["ffn_dim"] = sparse.pop("intermediate_size")
    if model_type == "helium":  # its default of 20 heads of 128 must fill the width
        sparse |= {"hidden_size": 2560, "num_attention_heads": 20}
    arguments = {key: value for key, value in sparse.items() if key != "model_type"}
    assert not differing(read(model_type, sparse), read(model_type, written_by_transformers(model_type, arguments)))


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gemma", "use_bidirectional_attention", True),
        ("gemma", "partial_rotary_factor", 0.5),
        ("gemma2", "sliding_window", None),
        ("gemma2", "layer_types", ["full_attention"] * 2),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "rope_parameters", {"rope_type": "default", "rope_theta": 5.0}),
        ("gemma3_text", "rope_parameters", {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}),
        ("gemma3_text", "layer_types", ["chunked_attention"] * 3),
        ("gemma3_text", "rope_scaling", {"type": "linear", "factor": 8.0}),
        ("gemma2", "sliding_window_pattern", 3),
        ("cohere2", "use_parallel_block", False),
        ("nemotron", "rope_percent", 0.25),
        ("starcoder2", "mlp_type", "gated"),
        ("cohere2", "use_qk_norm", True),
        ("cohere", "hidden_act", "no_such_activation"),
        ("stablelm", "head_dim", 20),
        ("helium", "head_dim", 16),
        ("persimmon", "num_key_value_heads", 2),
        ("phi", "n_experts", 8),
        ("xglm", "pad_token_id", 5),
        ("xglm", "add_cross_attention", True),
    ],
)
def test_an_unsupported_value_is_refused_by_name(model_type: str, key: str, value: Any) -> None:
    base = dict(next(case.hf for case in CASES if case.model_type == model_type))
    assert read(model_type, base)
    with pytest.raises(UserError, match=key):
        read(model_type, {**base, key: value})
