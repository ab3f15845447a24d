"""GGUF files of mixtures of experts: what llama.cpp reads, and what archlab refuses because llama.cpp cannot compute it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from archlab.errors import UserError
from archlab.exchange.gguf.read import read_gguf
from archlab.exchange.gguf.write import save_gguf
from archlab.exchange.load import load_hf
from archlab.hf.family import differing
from tests.parity.gguf_mixtures import DBRX, MIXTURES, YARN
from tests.parity.test_gguf import case_of, exported, named, numbers, ours
from tests.parity.test_gguf_import import rewritten
from tests.parity.tiny import Case

SIGMOID = 2
"""Value of `LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID` in llama-hparams.h."""
ROUTED = {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 16}
EXPECTED: dict[str, dict[str, Any]] = {
    "dots1-one-dense": {
        **ROUTED, "leading_dense_block_count": 1, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_weights_scale": 1.7, "expert_weights_norm": True, "expert_gating_func": SIGMOID,
    },
    "hunyuan_v1_moe-gqa": {
        "expert_count": 5, "expert_used_count": 2, "feed_forward_length": 48, "expert_feed_forward_length": 48,
        "expert_shared_feed_forward_length": 48,
    },
    "exaone_moe-windows": {
        **ROUTED, "leading_dense_block_count": 2, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 32, "expert_gating_func": SIGMOID, "attention.sliding_window": 7,
        "attention.sliding_window_pattern": [True, True, True, False, True], "expert_weights_norm": True,
    },
    "glm4_moe-biases-qk-norm": {
        **ROUTED, "leading_dense_block_count": 2, "expert_shared_count": 2, "expert_gating_func": SIGMOID,
        "rope.dimension_count": 8, "expert_weights_scale": 1.7,
    },
    "solar_open-biases": {
        **ROUTED, "leading_dense_block_count": 0, "expert_shared_count": 2, "expert_gating_func": SIGMOID,
        "rope.dimension_count": 12, "expert_weights_scale": 1.7, "expert_weights_norm": False,
    },
    "minimax_m2-partial": {
        "expert_count": 5, "expert_used_count": 3, "expert_gating_func": SIGMOID, "feed_forward_length": 48,
        "expert_feed_forward_length": 48, "rope.dimension_count": 6, "attention.key_length": 12,
        "expert_weights_scale": None,
    },
    "llama4_text-every-second": {
        "expert_count": 5, "expert_used_count": 2, "interleave_moe_layer_step": 2, "feed_forward_length": 40,
        "expert_feed_forward_length": 24, "attention.sliding_window": None, "rope.dimension_count": 12,
    },
    "llama4_text-128-experts": {"interleave_moe_layer_step": 1, "expert_count": 128},
    "afmoe-gated": {
        **ROUTED, "leading_dense_block_count": 1, "feed_forward_length": 48, "expert_shared_count": 2,
        "expert_gating_func": SIGMOID, "expert_weights_norm": True, "expert_weights_scale": 1.7,
        "attention.sliding_window": 7, "rope.dimension_count": 12,
    },
    "ernie4_5_moe-from-the-second": {
        **ROUTED, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "feed_forward_length": 48,
        "expert_shared_feed_forward_length": 32,
    },
    "dbrx-clipped": {
        "expert_count": 5, "expert_used_count": 3, "feed_forward_length": 16, "attention.clamp_kqv": 0.5,
        "attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 2, "rope.freq_base": 50.0,
    },
    "granitemoeshared-scales": {
        "expert_count": 5, "expert_used_count": 3, "feed_forward_length": 48, "expert_shared_feed_forward_length": 20,
        "embedding_scale": 3.0, "residual_scale": 0.22, "logit_scale": 13.0, "attention.scale": 0.25,
    },
    "dots1-all-sparse-tied": {"leading_dense_block_count": 0, "expert_weights_norm": False},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_that_llama_cpp_reads(name: str, tmp_path: Path) -> None:
    found = numbers(exported(next(case for case in MIXTURES if named(case) == name), tmp_path))
    assert {key: found.get(key) for key in EXPECTED[name]} == {
        key: pytest.approx(value) for key, value in EXPECTED[name].items()
    }


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("dots1", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
        (
            "dots1",
            {"n_routed_experts": 6, "n_group": 3, "topk_group": 2},
            "model.mlp.router.groups.n is 3; allowed: no groups (null)",
        ),
        ("dots1", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
        ("dots1", {"sliding_window": 7, "max_window_layers": 2}, "model.attention.window is 7"),
        ("hunyuan_v1_moe", {"moe_topk": [2, 1, 2]}, "model.mlp.active is 1, 2; allowed: one number for all layers"),
        ("hunyuan_v1_moe", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("exaone_moe", {"sliding_window_pattern": 3}, "model.attention.window is null in layer 2; allowed: a window"),
        ("exaone_moe", {"rope_parameters": YARN}, "model.position.scaling.kind is yarn; allowed: none"),
        (
            "exaone_moe",
            {"mlp_layer_types": ["sparse", "dense", "dense", "dense", "sparse"]},
            "model.mlp.kind is moe, gated, gated, gated, moe; allowed: first all dense layers",
        ),
        ("glm4_moe", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
        ("solar_open", {"n_shared_experts": 0}, "model.mlp.shared is null; allowed: a shared expert"),
        (
            "solar_open",
            {"n_routed_experts": 6, "n_group": 3, "topk_group": 2},
            "model.mlp.router.groups.n is 3; allowed: no groups (null)",
        ),
        ("minimax_m2", {"hidden_act": "gelu"}, "model.mlp.activation is gelu; allowed: silu"),
        ("llama4_text", {"attention_chunk_size": 6}, "model.attention.blocks.size is 6 in layer 0; allowed: 8192"),
        ("llama4_text", {"attn_scale": 0.5}, "model.attention.temperature is (0.5, 8192, 1) in layer 3"),
        ("llama4_text", {"use_qk_norm": False}, "model.attention.qk_norm.kind is none in layer 0; allowed: rmsnorm"),
        ("llama4_text", {"no_rope_layer_interval": 3}, "model.position.kind is none in layer 2; allowed: rope"),
        ("llama4_text", {"moe_layers": [1, 2]}, "model.mlp.kind is gated, moe, moe, gated, gated, gated; allowed"),
        ("llama4_text", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
        ("afmoe", {"mup_enabled": False}, "model.embedding.scale is 1.0; allowed: sqrt_d_model"),
        ("afmoe", {"global_attn_every_n_layers": 3}, "model.attention.window is null in layer 2; allowed: a window"),
        ("afmoe", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
        (
            "ernie4_5_moe",
            {"moe_layer_end_index": 2},
            "model.mlp.kind is gated, moe, moe, gated; allowed: first all dense layers",
        ),
        (
            "ernie4_5_moe",
            {"moe_layer_interval": 2},
            "model.mlp.kind is gated, moe, gated, moe; allowed: first all dense layers",
        ),
        ("ernie4_5_moe", {"use_bias": True}, "model.head.bias is true; allowed: false"),
        (
            "dbrx",
            {"ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": None}},
            "model.mlp.router.normalise is false; allowed: true",
        ),
        ("granitemoeshared", {"shared_intermediate_size": 0}, "model.mlp.shared is null; allowed: a shared expert"),
        ("granitemoeshared", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
    ],
)
def test_what_llama_cpp_cannot_run_is_refused_by_name(
    case: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = ours(Case(case, "changed", {**case_of(case).hf, **change}), tmp_path)
    with pytest.raises(UserError) as refused:
        save_gguf(model, tmp_path / "model.gguf", case)
    assert message in str(refused.value)


CONVERTER: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "dots1-one-dense": (
        ("expert_shared_feed_forward_length", "rope.dimension_count"),
        {"expert_group_count": 1, "expert_group_used_count": 1},
    ),
    "hunyuan_v1_moe-gqa": (
        ("rope.dimension_count",),
        {
            "expert_shared_count": 1, "rope.scaling.type": "none", "rope.scaling.factor": 1.0,
            "rope.scaling.original_context_length": 262144,
        },
    ),
    "exaone_moe-windows": (("rope.freq_base_swa",), {"rope.scaling.type": "none", "nextn_predict_layers": 0}),
    "glm4_moe-biases-qk-norm": (
        ("expert_shared_feed_forward_length",),
        {"expert_group_count": 1, "expert_group_used_count": 1, "nextn_predict_layers": 0},
    ),
    "solar_open-biases": (
        ("expert_shared_feed_forward_length",),
        {"expert_group_count": 1, "expert_group_used_count": 1, "nextn_predict_layers": 0, "feed_forward_length": 48},
    ),
    "minimax_m2-partial": ((), {}),
    "llama4_text-every-second": (("expert_shared_feed_forward_length",), {}),
    "llama4_text-128-experts": (("expert_shared_feed_forward_length",), {}),
    "afmoe-gated": (
        ("expert_shared_feed_forward_length", "attention.sliding_window_pattern", "rope.freq_base_swa"), {},
    ),
    "ernie4_5_moe-from-the-second": ((), {"expert_shared_count": 2}),
    "ernie4_5_moe-no-shared": ((), {"expert_shared_count": 0}),
    "dbrx-clipped": (("expert_feed_forward_length", "rope.dimension_count", "attention.key_length"), {}),
    "granitemoeshared-scales": (("expert_feed_forward_length", "rope.dimension_count"), {}),
    "dots1-all-sparse-tied": (
        ("expert_shared_feed_forward_length", "key_length", "value_length"), {"feed_forward_length": 48},
    ),
}  # fmt: skip
"""Keys that llama.cpp's converter leaves out (conversion/*.py), and keys that it writes and archlab does not, by case."""


@pytest.mark.parametrize("name", CONVERTER)
def test_the_keys_of_llama_cpps_converter_are_read(name: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in MIXTURES if named(case) == name), tmp_path)
    prefix, (absent, more) = reader.fields["general.architecture"].contents(), CONVERTER[name]
    for key in (*absent, "vocab_size", "use_parallel_residual"):
        reader.fields.pop(f"{prefix}.{key}", None)
    values = {f"{prefix}.{key}".replace(".", "__"): value for key, value in more.items()}
    model, _ = read_gguf(rewritten(reader, tmp_path / "other.gguf", **values))
    assert differing(model.config, load_hf(tmp_path).config) == {}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dots1-one-dense", "leading_dense_block_count"), ("dots1-one-dense", "expert_shared_count"),
        ("glm4_moe-biases-qk-norm", "expert_weights_norm"), ("exaone_moe-windows", "expert_gating_func"),
        ("ernie4_5_moe-from-the-second", "interleave_moe_layer_step"), ("dbrx-clipped", "expert_count"),
        ("llama4_text-every-second", "interleave_moe_layer_step"),
        ("hunyuan_v1_moe-gqa", "expert_used_count"), ("minimax_m2-partial", "expert_gating_func"),
    ],
)  # fmt: skip
def test_a_missing_key_is_an_error_of_the_user(name: str, key: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in MIXTURES if named(case) == name), tmp_path)
    del reader.fields[f"{reader.fields['general.architecture'].contents()}.{key}"]
    with pytest.raises(UserError, match=re.escape(key)):
        read_gguf(rewritten(reader, tmp_path / "other.gguf"))


def test_another_number_of_groups_is_refused(tmp_path: Path) -> None:
    reader = exported(case_of("dots1", "one-dense"), tmp_path)
    with pytest.raises(UserError, match=r"dots1\.expert_group_count is 5; archlab does not know this key"):
        read_gguf(rewritten(reader, tmp_path / "other.gguf", dots1__expert_group_count=5))


def test_layers_for_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    """llama.cpp counts them in `block_count`, and its converter writes them last."""
    reader = exported(case_of("glm4_moe", "biases"), tmp_path)
    last = [tensor for tensor in reader.tensors if tensor.name.startswith("blk.2.")]
    reader.tensors.extend(tensor._replace(name=tensor.name.replace("blk.2.", "blk.3.")) for tensor in last)
    file = rewritten(reader, tmp_path / "other.gguf", glm4moe__block_count=4, glm4moe__nextn_predict_layers=1)
    model, _ = read_gguf(file)
    assert differing(model.config, load_hf(tmp_path).config) == {}
    with pytest.raises(UserError, match=r"blk\.3\.attn_k\.weight  surplus"):
        read_gguf(rewritten(reader, tmp_path / "without.gguf"))


def test_a_first_axis_of_size_1_has_no_effect(tmp_path: Path) -> None:
    """ERNIE's correction bias is published as [1, experts], and llama.cpp's converter keeps this shape."""
    reader = exported(case_of("ernie4_5_moe", "second"), tmp_path)
    reader.tensors[:] = [
        tensor._replace(data=tensor.data[None]) if "exp_probs_b" in tensor.name else tensor for tensor in reader.tensors
    ]
    state = read_gguf(rewritten(reader, tmp_path / "other.gguf"))[0].state_dict()
    for name, parameter in load_hf(tmp_path).state_dict().items():
        assert torch.equal(state[name], parameter), name
