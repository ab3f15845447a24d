"""A wrong value anywhere in a config.json is refused or ignored, and never causes a traceback."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import transformers

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.family import NO_EFFECT, OTHER_TOOLS, Family, differing
from tests.parity.cases import CASES

MALFORMED = [0, -1, 1.5, 10**30, True, "x", "", [], [1], {}, {"a": 1}, None, math.nan, math.inf, [None], [[]]]
FRACTIONS = {"beta_fast", "beta_slow"}
"""Numbers that may have a fraction, although those of the valid files do not."""


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_malformed_values_are_refused_or_change_nothing(family: Family) -> None:
    """Each key of a valid config, including nested ones, gets each wrong value. None may be used or cause a traceback."""
    good = known_good(family)
    family.model_config(good, "good")
    harmless = NO_EFFECT | family.no_effect | OTHER_TOOLS
    refused, obeyed = 0, list[str]()
    for path in [path for path in paths(good) if path[0] not in harmless]:
        for value in MALFORMED:
            try:
                ours = family.model_config(with_value(good, path, value), "bad.json")
            except UserError as error:
                assert "bad.json" in str(error)  # noqa: PT017 - some values are valid for some keys
                refused += 1
                continue
            like = 1.0 if path[-1] in FRACTIONS else at(good, path)
            if not is_like(value, like) and not is_as_if_absent(family, ours, good, path):
                obeyed.append(f"{'.'.join(path)} = {value!r}")
    assert refused
    assert not obeyed


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("mamba2", "conv_kernel", 0), ("lfm2", "conv_L_cache", 0), ("qwen3_next", "linear_conv_kernel_dim", 1),
        ("qwen3_next", "linear_num_value_heads", 5), ("deepseek_v3", "n_group", 3), ("deepseek_v2", "topk_group", 0),
        ("gemma2", "sliding_window", -1), ("qwen3_moe", "intermediate_size", 0),
        ("llama4_text", "intermediate_size_mlp", 0), ("llama4_text", "intermediate_size", 0),
        ("llama4_text", "attention_chunk_size", -1), ("llama4_text", "floor_scale", 0), ("llama4_text", "attn_scale", -1.0),
        ("llama", "rope_theta", -1),
    ],
)  # fmt: skip
def test_an_invalid_value_is_named_by_its_key(model_type: str, key: str, value: float) -> None:
    """This includes fields of a layer kind and parts of the config that several keys set."""
    family = FAMILIES[model_type]
    case = next(case for case in CASES if case.model_type == model_type)
    case_values = {name: hf_value for name, hf_value in case.hf.items() if name != "rope_parameters"}
    with pytest.raises(UserError) as caught:
        family.model_config({**case_values, key: value}, "bad.json")
    assert f"  {key}  " in str(caught.value)
    assert "model." not in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "change", "key", "allowed"),
    [
        ("falcon", {"alibi": "x"}, "alibi", "true or false"),
        ("falcon", {"multi_query": []}, "multi_query", "true or false"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": 1.5}, "scale_attn_by_inverse_layer_idx", "true or false"),
        ("deepseek_v3", {"first_k_dense_replace": 1.5}, "first_k_dense_replace", "a whole number"),
        ("deepseek_v3", {"n_shared_experts": ""}, "n_shared_experts", "a whole number"),
        ("qwen3_moe", {"mlp_only_layers": "x"}, "mlp_only_layers", "a list"),
        ("gemma2", {"query_pre_attn_scalar": True}, "query_pre_attn_scalar", "a whole number"),
        ("granite", {"embedding_multiplier": True}, "embedding_multiplier", "a finite number"),
        ("granite", {"logits_scaling": 0}, "logits_scaling", "a number above 0"),
        ("gemma2", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar", "a number above 0"),
        ("mpt", {"attn_config": [1]}, "attn_config", "a JSON object"),
        ("glm4_moe", {"n_group": 2, "topk_group": 3}, "topk_group", "up to n_group, 2"),
        ("llama4_text", {"attn_temperature_tuning": 0}, "attn_temperature_tuning", "true or false"),
        ("llama4_text", {"attention_chunk_size": None}, "attention_chunk_size", "a number, because layer_types has chunked_attention"),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers", "0 or 1 for each of the 4 layers"),
        ("exaone_moe", {"sliding_window": None}, "sliding_window", "a number"),
        ("hy_v3", {"num_shared_experts": 0}, "num_shared_experts", "1 or more, because the published code builds a shared expert nevertheless"),
        ("hy_v3", {"mlp_layer_types": None, "first_k_dense_replace": 2}, "first_k_dense_replace", "1, or another value together with mlp_layer_types"),
        ("cohere2_moe", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling", "null, because the published code reads rope_parameters only"),
        ("cohere2_moe", {"expert_selection_fn": "x"}, "expert_selection_fn", "softmax, sigmoid"),
        ("cohere2_moe", {"shared_expert_combination_strategy": "x"}, "shared_expert_combination_strategy", "average, sum"),
        ("aria_text", {"hidden_act": "gelu"}, "hidden_act", "silu, because the published code always uses it in routed experts"),
        ("internlm3", {"mlp_bias": False}, "mlp_bias", "True, the value of attention_bias"),
        ("ministral3", {"rope_parameters": None, "rope_theta": 5e5}, "rope_theta", "1000000.0, or another value together with rope_parameters"),
        ("ministral3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters", "numbers for llama_4_scaling_beta and original_max_position_embeddings"),
        ("hunyuan_v1_moe", {"use_qk_norm": False}, "use_qk_norm", "True"),
        ("ernie", {"use_task_id": True}, "use_task_id", "false, because archlab does not add vectors of tasks"),
        ("mvp", {"use_prompt": True}, "use_prompt", "false, because archlab has no learned prompts"),
        ("roformer", {"rotary_value": True}, "rotary_value", "false, because archlab rotates queries and keys only"),
        ("ctrl", {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon", "1e-06, because the norms inside the layers always have this epsilon"),
        ("mellum", {"rope_theta": 1e6}, "rope_theta", "no value, because the published code reads rope_parameters only"),
        ("lfm3", {"rope_scaling": {"factor": 2.0}}, "rope_scaling", "no value, because the published code reads rope_parameters only"),
        ("lfm3", {"sliding_window": None}, "sliding_window", "a number, because layer_types has sliding_attention"),
        ("cohere_compass_text", {"rope_parameters": {}}, "rope_parameters", "RoPE parameters or null for sliding_attention"),
        ("laguna", {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping", "0.0, because archlab does not cap the logits of routers"),
        ("laguna", {"gating": False}, "gating", "true, per-head, per-element"),
        ("laguna", {"gating_types": ["per_element"] * 4}, "gating_types", "['per_head', 'per_head', 'per_head', 'per_head'], because the published code does not read this key"),
        ("laguna", {"mlp_only_layers": [1]}, "mlp_only_layers", "[0], because the published code does not read this key"),
        ("olmo_hybrid", {"rope_parameters": None}, "rope_parameters", "an object; its rope_theta is null without position encoding"),
        ("olmo_hybrid", {"layer_types": ["linear_attention"] * 4}, "layer_types", "a list with both linear_attention and full_attention"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 3}, "topk_group", "up to n_group, 2"),
    ],
)  # fmt: skip
def test_the_refusal_says_what_a_key_may_hold(model_type: str, change: dict[str, Any], key: str, allowed: str) -> None:
    family = FAMILIES[model_type]
    with pytest.raises(UserError) as caught:
        family.model_config({**known_good(family), **change}, "bad.json")
    message = f"bad.json: {key} is {change[key]!r}, which archlab cannot build; allowed: {allowed}"
    assert message in str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("attn_config", "rope_theta", 5e5, "50.0, the value outside attn_config, which the published code uses"),
        ("ffn_config", "moe_normalize_expert_weights", 2.0, "1.0, null"),
    ],
)
def test_the_refusal_of_a_key_inside_another_names_both(section: str, key: str, value: float, allowed: str) -> None:
    good = known_good(FAMILIES["dbrx"])
    message = f"{section}: {key} is {value}, which archlab cannot build; allowed: {allowed}"
    with pytest.raises(UserError, match=re.escape(message)):
        FAMILIES["dbrx"].model_config({**good, section: {**good[section], key: value}}, "bad.json")


def test_a_pattern_of_letters_is_the_list_of_layer_types() -> None:
    """Published Nemotron-H files have the pattern; transformers turns it into the list."""
    family = FAMILIES["nemotron_h"]
    good = {key: value for key, value in known_good(family).items() if key not in ("layers_block_type", "layer_types")}
    types = transformers.NemotronHConfig(hybrid_override_pattern="M-ME*").layers_block_type
    read = family.model_config({**good, "hybrid_override_pattern": "M-ME*", "num_hidden_layers": 5}, "good.json")
    assert read == family.model_config({**good, "layers_block_type": types, "num_hidden_layers": 5}, "good.json")
    with pytest.raises(UserError, match=r"hybrid_override_pattern is 'X', .*; allowed: the letters M, "):
        family.model_config({**good, "hybrid_override_pattern": "MX"}, "bad.json")


def test_whole_numbers_with_and_without_a_decimal_point_are_understood() -> None:
    """JSON writers differ: 7.0 layers are seven layers, and a multiplier of 2 is 2.0."""
    gemma, granite = FAMILIES["gemma2"], FAMILIES["granite"]
    scaled = gemma.model_config({**known_good(gemma), "query_pre_attn_scalar": 16.0}, "good.json")
    assert scaled.attention.scale == 0.25
    assert granite.model_config({**known_good(granite), "embedding_multiplier": 2}, "good.json").embedding.scale == 2


def known_good(family: Family) -> dict[str, Any]:
    case = next(case for case in CASES if case.model_type == family.model_type)
    return json.loads(transformers.CONFIG_MAPPING[family.model_type](**case.hf).to_json_string(use_diff=False))


def paths(values: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the path of every key, including keys of nested objects."""
    inside = [(key, *path) for key, value in values.items() if isinstance(value, dict) for path in paths(value)]
    return [*((key,) for key in values), *inside]


def at(values: Any, path: Sequence[str]) -> Any:
    return at(values[path[0]], path[1:]) if path else values


def with_value(values: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    key, *rest = path
    return {**values, key: with_value(values[key], rest, value) if rest else value}


def without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    key, *rest = path
    return {**values, key: without(values[key], rest)} if rest else {k: v for k, v in values.items() if k != key}


def is_like(value: Any, good: Any) -> bool:
    """Whether a value has the type of a valid one, lists included. null is accepted, because it may have a meaning."""
    if value is None:
        return True
    if isinstance(good, bool) or isinstance(value, bool):
        return isinstance(good, bool) and isinstance(value, bool)
    if isinstance(good, int | float | None):
        exact = isinstance(good, int) and isinstance(value, float)
        return isinstance(value, int | float) and math.isfinite(value) and not exact
    if isinstance(good, list):
        return isinstance(value, list) and (not good or all(is_like(v, good[0]) for v in value if v))
    return isinstance(value, type(good))


def is_as_if_absent(family: Family, ours: ModelConfig, good: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a config is that of the valid file with or without the key."""
    if not differing(ours, family.model_config(good, "good")):
        return True
    try:
        return not differing(ours, family.model_config(without(good, path), "good"))
    except UserError:
        return False
