"""Recurrent mixers in GGUF files: RoPE beside them, notes for the user, and the formats of tensors."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from archlab.exchange.gguf.write import save_gguf
from tests.parity.test_gguf import case_of, exported, numbers, ours
from tests.parity.tiny import tiny_model


@pytest.mark.parametrize("name", ["all-rotated", "half-rotated"])
def test_rope_of_adjacent_pairs_gives_the_scores_of_bamba(name: str, tmp_path: Path) -> None:
    """llama.cpp rotates dimensions 2i and 2i + 1 of the first `rope.dimension_count` dimensions (ggml-cpu/ops.cpp)."""
    case = case_of("bamba", name)
    reader, theirs = exported(case, tmp_path), tiny_model(case).state_dict()
    stored = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    n = int(numbers(reader)["rope.dimension_count"])
    x, angles = np.ones(32), 7 * 50.0 ** -(np.arange(0, n, 2) / n)

    def turned(head: np.ndarray, pairs: list[tuple[int, int]], sign: int) -> np.ndarray:
        out = head.copy()
        for (a, b), angle in zip(pairs, sign * angles, strict=True):
            out[a], out[b] = (
                head[a] * np.cos(angle) - head[b] * np.sin(angle),
                head[a] * np.sin(angle) + head[b] * np.cos(angle),
            )
        return out

    adjacent, halves = [(2 * i, 2 * i + 1) for i in range(n // 2)], [(i, i + n // 2) for i in range(n // 2)]
    scores = []
    for q, k, pairs in (
        (stored["blk.1.attn_q.weight"], stored["blk.1.attn_k.weight"], adjacent),
        (*(theirs[f"model.layers.1.self_attn.{part}_proj.weight"].numpy() for part in "qk"), halves),
    ):
        query, key = (q @ x)[:8], (k @ x)[:8]
        scores.append(turned(query, pairs, 1) @ turned(key, pairs, -1))
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


@pytest.mark.parametrize(("name", "has_note"), [("plain", False), ("tied", True)])
def test_a_note_says_that_factors_are_in_the_weights(name: str, has_note: bool, tmp_path: Path) -> None:
    _, notes = save_gguf(ours(case_of("falcon_h1", name), tmp_path / "hf"), tmp_path / "model.gguf")
    assert any("the weights were multiplied by them" in note for note in notes) == has_note


@pytest.mark.parametrize("family", ["mamba2", "jamba", "lfm2"])
def test_only_products_with_the_stream_are_narrowed(family: str, tmp_path: Path) -> None:
    """`prepare_tensors` in conversion/base.py keeps kernels of convolutions, norms and tensors without a suffix wide."""
    save_gguf(ours(case_of(family), tmp_path / "hf"), tmp_path / "model.gguf", dtype="bfloat16")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    wide = ("ssm_conv1d.weight", "shortconv.conv.weight", "_norm.weight", ".bias", "ffn_gate_inp.weight")
    for name, kind in kinds.items():
        is_wide = name.endswith(wide) or not name.endswith(".weight")
        assert kind == ("F32" if is_wide else "BF16"), name
