"""GGUF files of mixtures of experts: what llama.cpp reads, and what archlab refuses because llama.cpp cannot compute it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from archlab.errors import UserError
from archlab.exchange.gguf.read import read_gguf
from archlab.exchange.load import load_hf
from archlab.hf.family import differing
from tests.parity.gguf_mixtures import MIXTURES
from tests.parity.test_gguf import case_of, exported, named
from tests.parity.test_gguf_import import rewritten

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


def test_a_llama_4_without_chunks_is_refused(tmp_path: Path) -> None:
    """llama.cpp then also changes the layers without RoPE."""
    reader = exported(case_of("llama4_text", "second"), tmp_path)
    with pytest.raises(UserError, match=r"attention\.sliding_window is 0; archlab imports only files without this key"):
        read_gguf(rewritten(reader, tmp_path / "other.gguf", llama4__attention__sliding_window=0))


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
