"""Published models as GGUF files: the values that llama.cpp reads, as their config.json has them."""

from typing import Any

import pytest

import archlab
from archlab.errors import UserError
from archlab.exchange.gguf.registry import find_architecture
from archlab.exchange.gguf.settings import settings

PUBLISHED: list[tuple[str, str, dict[str, Any]]] = [
    ("mamba-2-2.7b", "mamba2", {
        "ssm.conv_kernel": 4, "ssm.inner_size": 5120, "ssm.state_size": 128, "ssm.time_step_rank": 80,
        "ssm.group_count": 1, "attention.head_count": 0,
    }),
    ("jamba-v0.1", "jamba", {
        "ssm.inner_size": 8192, "ssm.state_size": 16, "ssm.time_step_rank": 256, "expert_count": 16,
        "expert_used_count": 2, "feed_forward_length": 14336, "attention.head_count": 32,
        "attention.head_count_kv": [0, 0, 0, 0, 8, 0, 0, 0] * 4,
    }),
    ("lfm2-8b-a1b", "lfm2_moe", {
        "shortconv.l_cache": 3, "leading_dense_block_count": 2, "expert_count": 32, "expert_used_count": 4,
        "feed_forward_length": 7168, "expert_feed_forward_length": 1792,
    }),
    ("bamba-9b", "bamba", {
        "ssm.inner_size": 8192, "ssm.time_step_rank": 128, "rope.dimension_count": 64, "rope.scaling.finetuned": True,
        "attention.head_count_kv": [8 * (i in (9, 18, 27)) for i in range(32)],
    }),
    ("apertus-8b", "apertus", {"feed_forward_length": 21504, "rope.dimension_count": 128, "rope.freq_base": 1.2e7}),
    ("ministral-3-8b", "ministral3", {
        "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 16384,
        "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1,
    }),
    ("minimax-m2", "minimax_m2", {
        "expert_count": 256, "expert_used_count": 8, "feed_forward_length": 1536, "rope.dimension_count": 64,
        "expert_gating_func": 2,
    }),
    ("solar-open-100b", "solar_open", {
        "leading_dense_block_count": 0, "expert_gating_func": 2, "rope.dimension_count": 128,
    }),
    ("gemma-4-26b-a4b", "gemma4_text", {
        "feed_forward_length": 2112, "expert_feed_forward_length": 704, "attention.key_length": 512,
        "attention.key_length_swa": 256, "attention.head_count_kv": [8, 8, 8, 8, 8, 2] * 5,
        "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0,
    }),
    ("llama-4-maverick", "llama4_text", {
        "interleave_moe_layer_step": 2, "expert_count": 128, "expert_used_count": 1, "feed_forward_length": 16384,
        "expert_feed_forward_length": 8192,
    }),
    ("deepseek-v2-lite", "deepseek_v2", {
        "attention.q_lora_rank": 0, "attention.kv_lora_rank": 512, "leading_dense_block_count": 1,
        "rope.scaling.yarn_log_multiplier": pytest.approx(0.0707), "expert_gating_func": 1,
    }),
    ("deepseek-v3", "deepseek_v3", {
        "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "attention.q_lora_rank": 1536, "leading_dense_block_count": 3,
        "rope.scaling.yarn_log_multiplier": pytest.approx(0.1), "expert_group_count": 8,
        "expert_group_used_count": 4, "expert_weights_scale": 2.5, "feed_forward_length": 18432,
    }),
    ("youtu-llm-2b", "youtu", {"leading_dense_block_count": 32, "expert_shared_count": 0}),
    ("lfm2-1.2b", "lfm2", {
        "shortconv.l_cache": 3, "feed_forward_length": 8192, "attention.head_count": 32,
        "attention.head_count_kv": [8 * (i in (2, 5, 8, 10, 12, 14)) for i in range(16)],
    }),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "family", "expected"), PUBLISHED)
def test_published_models_can_be_written(preset: str, family: str, expected: dict[str, Any]) -> None:
    model, architecture = archlab.load_config(preset).model, find_architecture(family)
    assert all("float16 table" in note for note in architecture.check(model))  # of GELU
    found = settings(model, architecture)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("preset", "family", "message"),
    [
        ("deepseek-v2", "deepseek_v2", "model.mlp.router.groups.n is 8; allowed: no groups"),
        ("kimi-k2", "deepseek_v3", "model.position.scaling.beta_fast is 1.0; allowed: 32.0"),
        ("moonlight-16b-a3b", "deepseek_v3", "model.norm.eps is 1e-05; allowed: model.attention.norm_eps"),
        ("internlm3-8b", "internlm3", "model.position.scaling.kind is dynamic"),
    ],
)
def test_some_published_models_cannot_be_written(preset: str, family: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        find_architecture(family).check(archlab.load_config(preset).model)
    assert message in str(refused.value)
