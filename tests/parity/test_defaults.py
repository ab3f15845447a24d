"""What a config.json leaves out is what the published class takes, and what archlab writes is what the class knows."""

import json
from typing import Any

import pytest
import transformers

from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.family import NO_EFFECT, OTHER_TOOLS, Family, differing
from tests.parity.cases import CASES
from tests.parity.tiny import Case

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}}
"""Without these the class's own defaults are no model."""
UNLISTED = {"architectures", "pad_token_id", "add_cross_attention", "head_dim", "seq_length"}
"""Keys of the classes below a family's own, what the code of attention and RoPE asks for, and Bloom's length, which is
for us alone."""
UNLISTED_OF = {
    "hunyuan_v1_dense": {"use_cla", "use_qk_norm"}, "mamba2": {"max_position_embeddings"},
    "phi3": {"attention_bias", "lm_head_bias", "mlp_bias"},
}  # fmt: skip
"""What some published files of a family hold beside the keys of its class."""


@EVERY_FAMILY
def test_a_key_that_is_left_out_has_the_default_of_the_published_class(family: Family) -> None:
    whole = defaults(family.model_type) | NEEDED.get(family.model_type, {})
    expected, compared = family.model_config(whole, "whole"), 0
    for key in sorted(whole.keys() - NO_EFFECT - OTHER_TOOLS - family.no_effect):
        try:
            found = family.model_config({name: value for name, value in whole.items() if name != key}, "part")
        except UserError as error:
            assert f"{key} is missing" in str(error) or key in NEEDED[family.model_type]  # noqa: PT017 - most are not
            continue
        assert differing(found, expected) == {}, key
        compared += 1
    assert compared


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model_type}-{case.name}")
def test_every_key_that_is_written_is_one_that_the_class_knows(case: Case) -> None:
    family = FAMILIES[case.model_type]
    config = transformers.CONFIG_MAPPING[case.model_type](**case.hf)
    theirs = json.loads(config.to_json_string(use_diff=False))
    written = family.hf_config(family.model_config(theirs, "theirs"))
    known = {*theirs, *defaults(case.model_type), *config.attribute_map}
    assert written.keys() - known <= UNLISTED | UNLISTED_OF.get(case.model_type, set())


@EVERY_FAMILY
def test_files_of_the_class_without_a_head_are_known_by_the_prefix_that_they_lack(family: Family) -> None:
    assert family.prefix == f"{getattr(transformers, family.architecture).base_model_prefix}."


def defaults(model_type: str) -> dict[str, Any]:
    return json.loads(transformers.CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
