"""Files of Kimi Linear as Moonshot AI published them: the names of their tensors, and the keys of their config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.hf.family import differing
from tests.parity.cases.kimi_linear import CASES
from tests.parity.tiny import TOKENS, tiny_model

PUBLISHED: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"], "dtype": "bfloat16", "first_k_dense_replace": 1, "head_dim": 72,
    "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26], "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024,
    "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
    "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1,
    "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip


def test_the_preset_is_the_published_model() -> None:
    read = FAMILIES["kimi_linear"].model_config(PUBLISHED, "config.json")
    assert differing(read, load_config("kimi-linear-48b-a3b").model) == {}


def test_files_with_the_published_names_are_the_same_model(tmp_path: Path) -> None:
    """transformers saves the dense MLP as block_sparse_moe. In the published files, and in archlab's, it is called
    mlp."""
    published = tiny_model(CASES[0]).eval()
    published.save_pretrained(theirs := tmp_path / "theirs")
    save_pretrained(load_hf(theirs), ours := tmp_path / "ours")
    names = load_file(ours / "model.safetensors").keys()
    assert "model.layers.0.mlp.gate_proj.weight" in names
    assert "model.layers.1.block_sparse_moe.experts.0.w1.weight" in names
    assert "model.layers.0.block_sparse_moe.gate_proj.weight" in load_file(theirs / "model.safetensors")
    with torch.no_grad():
        wanted = published(TOKENS).logits
        for folder in (theirs, ours):
            torch.testing.assert_close(load_hf(folder)(TOKENS), wanted, atol=1e-4, rtol=1e-4)
            again = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            torch.testing.assert_close(again(TOKENS).logits, wanted, atol=1e-5, rtol=1e-5)


def test_a_decay_of_another_shape_is_named(tmp_path: Path) -> None:
    tiny_model(CASES[0]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.A_log": torch.zeros(1, 1, 4, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"A_log +has shape \[1, 1, 4, 1\], expected \[1, 1, 3, 1\]"):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, r"linear_attn_config.gate_lower_bound is -5.0"),
        (
            {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
            "allowed: each of the layers 1 to 27 in one of the two lists",
        ),
        ({"mla_use_nope": False}, "mla_use_nope is False"),
        ({"mla_use_output_gate": True}, "archlab does not know these keys"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
        ({"n_group": 4}, "n_group is 4, but num_expert_group, which means the same, is 1"),
    ],
)
def test_other_models_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FAMILIES["kimi_linear"].model_config(json.loads(json.dumps(PUBLISHED | change)), "config.json")
