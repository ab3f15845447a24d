"""A config.json with any value in any place is a config or a message, never a traceback."""

import json
import math
from typing import Any

import pytest
import transformers

from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.family import Family
from tests.parity.cases import CASES

MALFORMED = [0, -1, 1.5, 10**30, True, "x", "", [], [1], {}, {"a": 1}, None, math.nan, math.inf, [None], [[]]]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_malformed_values_are_messages(family: Family) -> None:
    """Each key of a good config, made wrong in every way: a config or a UserError, nothing else."""
    good = known_good(family)
    family.model_config(good, "good")
    for key in good:
        for value in MALFORMED:
            try:
                family.model_config({**good, key: value}, "bad.json")
            except UserError as error:
                assert "bad.json" in str(error)  # noqa: PT017 - a good value for one key is no error at all


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("mamba2", "conv_kernel", 0), ("lfm2", "conv_L_cache", 0), ("qwen3_next", "linear_conv_kernel_dim", 1),
        ("qwen3_next", "linear_num_value_heads", 5), ("deepseek_v3", "n_group", 3), ("deepseek_v2", "topk_group", 0),
        ("gemma2", "sliding_window", -1), ("qwen3_moe", "intermediate_size", 0),
        ("llama", "rope_theta", -1),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_named_by_its_key(model_type: str, key: str, value: int) -> None:
    """Also in a kind of layer, and where several keys give one part of our config."""
    family = FAMILIES[model_type]
    case = next(case for case in CASES if case.model_type == model_type)
    case_values = {name: given for name, given in case.hf.items() if name != "rope_parameters"}
    with pytest.raises(UserError) as caught:
        family.model_config({**case_values, key: value}, "bad.json")
    assert f"  {key}  " in str(caught.value)
    assert "model." not in str(caught.value)


def known_good(family: Family) -> dict[str, Any]:
    case = next(case for case in CASES if case.model_type == family.model_type)
    return json.loads(transformers.CONFIG_MAPPING[family.model_type](**case.hf).to_json_string(use_diff=False))
