"""DeepSeek V2, V3 and gpt-oss: published files in old and new format, at published lengths, and in four bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2RotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import Yarn
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf
from archlab.families.registry import find_family
from archlab.hf.family import differing
from archlab.model.rotary import rotation
from archlab.pricing.params import parameters
from tests.parity.cases import CASES
from tests.parity.tiny import Case, tiny_model

DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 1e-3,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK_V2: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"], "aux_loss_alpha": 0.001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 12288, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1536, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 128,
    "num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": True, "topk_group": 3,
    "topk_method": "group_limited_greedy", "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
PUBLISHED = {config["model_type"]: config for config in (DEEPSEEK_V2, DEEPSEEK_V3, GPT_OSS)}


def read(values: dict[str, Any]) -> ModelConfig:
    return find_family(values["model_type"], "config.json").model_config(values, "config.json")


@pytest.mark.parametrize(
    ("model_type", "total", "active"),
    [("deepseek_v2", 235.7e9, 21.4e9), ("deepseek_v3", 671.0e9, 37.5e9), ("gpt_oss", 20.9e9, 4.2e9)],
)
def test_published_files_have_the_number_of_parameters_of_their_reports(
    model_type: str, total: float, active: float
) -> None:
    """The reports say 236B and 21B, 671B and 37B, 21B and 3.6B. That of gpt-oss does not count the embedding as active."""
    found = parameters(read(PUBLISHED[model_type]))
    assert found.total == pytest.approx(total, rel=1e-3)
    assert found.active == pytest.approx(active, rel=5e-3)


def test_kimi_k2_is_read_as_deepseek_v3() -> None:
    assert read({**DEEPSEEK_V3, "model_type": "kimi_k2"}) == read(DEEPSEEK_V3)


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_the_config_that_transformers_5_or_archlab_writes_is_the_published_one(model_type: str) -> None:
    values = {
        key: value for key, value in PUBLISHED[model_type].items() if key not in ("model_type", "quantization_config")
    }
    theirs = json.loads(transformers.CONFIG_MAPPING[model_type](**values).to_json_string())
    ours = read(PUBLISHED[model_type])
    assert not differing(read(theirs), ours)
    assert not differing(read(find_family(model_type, "").hf_config(ours)), ours)


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    sparse: dict[str, Any] = {"vocab_size": 61, "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 128}
    sparse |= {"max_position_embeddings": 4096, "intermediate_size": 64}
    sparse |= {"num_experts_per_tok": 4} if model_type == "deepseek_v2" else {}
    theirs = json.loads(transformers.CONFIG_MAPPING[model_type](**sparse).to_json_string())
    assert not differing(read({"model_type": model_type, **sparse}), read(theirs))


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gpt_oss", "swiglu_alpha", 1.5),
        ("gpt_oss", "layer_types", ["chunked_attention"] * 24),
        ("gpt_oss", "sliding_window", None),
        ("deepseek_v2", "num_key_value_heads", 8),
        ("deepseek_v3", "num_key_value_heads", 8),
        ("deepseek_v3", "head_dim", 128),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v3", "rope_scaling", {"type": "linear", "factor": 4.0, "mscale_all_dim": 1.0}),
        ("deepseek_v3", "partial_rotary_factor", 0.5),
        ("deepseek_v2", "topk_group", None),
    ],
)
def test_an_unsupported_value_is_refused_by_name(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=key):
        read({**PUBLISHED[model_type], key: value})


# --- at published lengths -------------------------------------------------------------------------------------

ROTATIONS: dict[str, Any] = {
    "deepseek_v2": DeepseekV2RotaryEmbedding,
    "deepseek_v3": DeepseekV3RotaryEmbedding,
    "gpt_oss": GptOssRotaryEmbedding,
}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_rotations_are_the_published_ones_up_to_the_longest_sequence(model_type: str) -> None:
    """All pairs are compared: those that YaRN keeps, those that it stretches, and those between."""
    values = {
        key: value for key, value in PUBLISHED[model_type].items() if key not in ("model_type", "quantization_config")
    }
    ours = layer_configs(read(PUBLISHED[model_type]))[0]
    assert isinstance(ours.position, Rope)
    assert isinstance(ours.position.scaling, Yarn)
    longest = values["max_position_embeddings"]
    positions = torch.tensor([[0, 1, 4095, 4096, 4097, longest // 2, longest - 1]])
    theirs = ROTATIONS[model_type](transformers.CONFIG_MAPPING[model_type](**values))(torch.zeros(1), positions)
    cos, sin = (theirs.real, theirs.imag) if torch.is_tensor(theirs) else theirs
    found = rotation(ours.position, ours.attention.rotary_width, positions, positions[:, -1:] + 1, torch.float32)
    pairs = found.cos.shape[-1] // 2
    second = slice(1, None, 2) if found.interleaved else slice(pairs, None)
    torch.testing.assert_close(found.cos[:, 0, :, second], cos[..., :pairs], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.sin[:, 0, :, second], sin[..., :pairs], rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_logits_are_the_published_ones_beyond_the_original_length(model_type: str, tmp_path: Path) -> None:
    """There are 4,200 tokens, with the published scaling from 4,096 tokens on and gpt-oss's published window of 128."""
    case = next(case for case in CASES if case.model_type == model_type)
    hf = {**case.hf, "num_attention_heads": 2, "num_key_value_heads": 2 if "kv_lora_rank" in case.hf else 1}
    hf |= {"num_hidden_layers": 2, "max_position_embeddings": 8192}
    scaling = dict(PUBLISHED[model_type]["rope_scaling"], rope_theta=PUBLISHED[model_type]["rope_theta"])
    hf["rope_parameters"] = {"rope_type": "yarn"} | {k: v for k, v in scaling.items() if k != "type"}
    hf |= {"sliding_window": 128} if model_type == "gpt_oss" else {"first_k_dense_replace": 1}
    theirs = tiny_model(Case(model_type, "long", hf))
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(3, 61, (1, 4200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = theirs(tokens).logits, load_hf(tmp_path)(tokens)
    # If two scores of a router are nearly equal, another expert may be chosen, which changes the token's logits.
    gaps = (found - wanted).abs().amax(-1)[0] / wanted.std()
    assert gaps.quantile(0.98) <= 1e-4


# --- in four bits ---------------------------------------------------------------------------------------------


TEXT = torch.arange(3, 40)[None]


def test_gpt_oss_in_four_bits_equals_the_model_of_its_dequantized_tensors(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.model_type == "gpt_oss")
    tiny_model(Case("gpt_oss", "four bits", {**case.hf, "intermediate_size": 64})).bfloat16().save_pretrained(tmp_path)
    stored, dequantized = load_file(tmp_path / "model.safetensors"), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, n_in, n_out = stored.pop(name).shape
        blocks = torch.randint(0, 256, (experts, n_out, n_in // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 125, (experts, n_out, n_in // 32), dtype=torch.uint8, generator=generator)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        dequantized[name] = convert_moe_packed_tensors(blocks, scales)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert check_hf(tmp_path) == []
    experts = (model := load_hf(tmp_path)).layers[1].get_submodule("mlp.experts")
    both = dequantized["model.layers.1.mlp.experts.gate_up_proj"]
    assert torch.equal(experts.get_parameter("gate"), both[..., 0::2].mT)
    assert torch.equal(experts.get_parameter("up"), both[..., 1::2].mT)
    assert torch.equal(experts.get_parameter("down"), dequantized["model.layers.1.mlp.experts.down_proj"].mT)
    # All other tensors may be stored in float32. config.json names the dtype to use.
    wide = {name: t if t.dtype == torch.uint8 else t.float() for name, t in stored.items()}
    save_file(wide, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert torch.equal(load_hf(tmp_path)(TEXT), model(TEXT))


def test_sinks_are_read_in_every_layer(tmp_path: Path) -> None:
    """Layers alternate between a window and full attention. The first has a window."""
    model = read(GPT_OSS)
    attentions = [layer.attention for layer in layer_configs(model)]
    assert all(isinstance(a, MultiHead) and a.sinks for a in attentions)
    assert [a.window for a in attentions if isinstance(a, MultiHead)] == [128, None] * 12
