"""Keys of the published config.json of MiMo-V2-Flash that the class of transformers does not read."""

from typing import Any

import pytest
import transformers

from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.quantization import method

FAMILY = FAMILIES["mimo_v2_flash"]
SIZES: dict[str, Any] = {
    "vocab_size": 152576, "hidden_size": 4096, "num_hidden_layers": 48, "max_position_embeddings": 262144,
    "intermediate_size": 16384, "num_attention_heads": 64,
}  # fmt: skip
IGNORED: dict[str, Any] = {
    "layernorm_epsilon": 1e-5, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
    "swa_v_head_dim": 128, "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334,
    "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0, 1] * 7, 1, 1, 1, 1, 0], "moe_layer_freq": [0, *[1] * 47],
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "n_shared_experts": None, "rope_scaling": None, "attention_chunk_size": 128,
}  # fmt: skip
WINDOW = {"sliding_window": 128, "sliding_window_size": 128}
OTHERS: dict[str, Any] = {
    "layernorm_epsilon": 1e-6, "swa_num_attention_heads": 32, "swa_num_key_value_heads": 4, "swa_head_dim": 128,
    "swa_v_head_dim": 192, "rope_theta": 1e6, "swa_rope_theta": 1e5, "partial_rotary_factor": 1.0,
    "hybrid_layer_pattern": [0, 1] * 24, "moe_layer_freq": [1] * 48, "add_swa_attention_sink_bias": False,
    "add_full_attention_sink_bias": True, "scoring_func": "softmax", "topk_method": "greedy", "n_shared_experts": 1,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}  # fmt: skip


def test_the_published_keys_describe_the_default_of_the_class() -> None:
    published = FAMILY.model_config(SIZES | IGNORED | WINDOW | {"routed_scaling_factor": None}, "config.json")
    values = transformers.MiMoV2FlashConfig(max_position_embeddings=262144, **WINDOW).to_dict()
    assert published == FAMILY.model_config(values, "config.json")


@pytest.mark.parametrize("key", OTHERS)
def test_another_value_of_an_ignored_key_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=f"config.json: {key} is .*, which archlab cannot build; allowed: "):
        FAMILY.model_config(SIZES | IGNORED | WINDOW | {key: OTHERS[key]}, "config.json")


def test_its_quantization_is_known() -> None:
    values = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    mapped = {**values, "packed_modules_mapping": {}, "ignored_layers": ["model.layers.0.self_attn.o_proj"]}
    assert type(method(mapped, "config.json")) is type(method(values, "config.json"))
