"""Missing keys of a config.json have the defaults of the published class, and the class knows all keys we write."""

import json
from typing import Any

import pytest
import transformers

from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.family import NO_EFFECT, OTHER_TOOLS, Family, differing
from archlab.hf.fields import all_hf_keys
from tests.parity.cases import CASES
from tests.parity.tiny import Case, published_class

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "cohere_compass_text": {"rope_parameters": {"full_attention": None}}, "dbrx": {"attn_config": {"clip_qkv": 8.0}},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "lfm2_moe": {"layer_types": [*["conv"] * 31, "full_attention"]},
}  # fmt: skip
"""Keys without which the class's defaults are not a valid model."""
UNLISTED = {
    "architectures", "pad_token_id", "add_cross_attention", "head_dim", "seq_length", "n_positions",
    "decoder_start_token_id", "forced_eos_token_id",
}  # fmt: skip
"""Keys of base classes, keys that the code of attention, RoPE and generation reads, and the lengths of Bloom and T5,
which only archlab reads."""
UNLISTED_OF = {
    "hunyuan_v1_dense": {"use_cla", "use_qk_norm"}, "falcon_mamba": {"max_position_embeddings"},
    "mamba": {"max_position_embeddings"},
    "mamba2": {"max_position_embeddings"},
    "gemma4_text": {"global_head_dim", "num_global_key_value_heads"},
    "gemma4_unified_text": {"global_head_dim", "num_global_key_value_heads"},
    "phi3": {"attention_bias", "lm_head_bias", "mlp_bias"}, "nemotron_h": {"num_hidden_layers"},
}  # fmt: skip
"""Keys of some published files that the family's class does not have."""


@EVERY_FAMILY
def test_a_missing_key_has_the_default_of_the_published_class(family: Family) -> None:
    whole = defaults(family.model_type) | NEEDED.get(family.model_type, {})
    expected, compared = family.model_config(whole, "whole"), 0
    for key in sorted(whole.keys() - NO_EFFECT - OTHER_TOOLS - family.no_effect):
        try:
            found = family.model_config({name: value for name, value in whole.items() if name != key}, "part")
        except UserError as error:
            assert f"{key} is missing" in str(error) or key in NEEDED[family.model_type]  # noqa: PT017 - most are not
            assert key != all_hf_keys(family.fields).get("max_seq_len")
            continue
        assert differing(found, expected) == {}, key
        compared += 1
    assert compared


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model_type}-{case.name}")
def test_the_class_knows_every_key_that_is_written(case: Case) -> None:
    family = FAMILIES[case.model_type]
    config = transformers.CONFIG_MAPPING[case.model_type](**case.hf)
    theirs = json.loads(config.to_json_string(use_diff=False))
    written = family.hf_config(family.model_config(theirs, "theirs"))
    known = {*theirs, *defaults(case.model_type), *config.attribute_map}
    assert written.keys() - known <= UNLISTED | UNLISTED_OF.get(case.model_type, set())


@EVERY_FAMILY
def test_the_prefix_is_the_one_that_files_of_the_class_without_a_head_lack(family: Family) -> None:
    prefix = published_class(family.model_type).base_model_prefix
    # Llama 4 names its place in the model of texts and images. Its text model calls the class without a head `model`.
    # The classes of T5 have no submodule of this name. Files of Nemotron-H say `backbone` where the class says `model`.
    named = {"language_model": "model.", **({"transformer": ""} if family.model_type in ("t5", "mt5", "umt5") else {})}
    named |= {"model": "backbone."} if family.model_type == "nemotron_h" else {}
    assert family.prefix == named.get(prefix, f"{prefix}.")


def defaults(model_type: str) -> dict[str, Any]:
    return json.loads(transformers.CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
