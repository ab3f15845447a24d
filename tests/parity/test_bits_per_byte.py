"""`archlab eval` of a Hugging Face folder gives the loss that transformers computes in float64, in bits per byte."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from archlab.cli.app import main
from archlab.data.shards import DataFolder
from tests.parity.test_exchange import SHAPES, TRAIN
from tiny import write_text

torch.set_num_threads(1)

CONTEXT = 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a trained model, the same model with one key/value head, and text of the same tokenizer."""
    home = tmp_path_factory.mktemp("eval")
    text = write_text(home)
    shape = [*SHAPES["llama"][1:], f"data.path={text}"]
    hf, data = str(home / "hf"), str(home / "data")
    assert main(["train", SHAPES["llama"][0], *shape, *TRAIN, "--out", str(home / "run")]) == 0
    assert main(["export", str(home / "run"), "--out", hf]) == 0
    assert main(["convert", hf, "model.attention.n_kv_heads=1", "--out", str(home / "gqa")]) == 0
    assert main(["data", str(text), "--tokenizer", hf, "--out", data]) == 0
    return home


@torch.no_grad()
def bits_per_byte(folder: Path, data: DataFolder) -> float:
    """Return the loss of transformers over all whole windows, divided by the bytes that its tokenizer decodes."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = np.asarray(data.held_out.read(0, len(data.held_out))).astype(np.int64)
    nats, n_bytes = 0.0, 0
    for start in range(0, len(ids) - CONTEXT, CONTEXT):
        window = torch.from_numpy(ids[start : start + CONTEXT + 1])
        labels = window.where(window != tokenizer.eos_token_id, -100)
        scored = labels[1:][labels[1:] != -100]
        nats += model(window[None], labels=labels[None]).loss.item() * len(scored)
        n_bytes += len(tokenizer.decode(scored).encode())
    return nats / math.log(2) / n_bytes


def test_bits_per_byte_are_those_of_transformers_before_and_after_a_change(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(folders / name) for name in ("hf", "gqa")]
    options = [f"data.path={folders / 'data'}", f"train.eval_seq_len={CONTEXT}", "train.dtype=float32"]
    capsys.readouterr()
    assert main(["eval", *names, *options, "train.device=cpu", "--json"]) == 0
    found = [score["bits_per_byte"] for score in json.loads(capsys.readouterr().out)]
    expected = [bits_per_byte(folders / name, DataFolder.open(folders / "data")) for name in ("hf", "gqa")]
    assert found == pytest.approx(expected, rel=1e-5)  # float32 against float64
    assert abs(expected[1] - expected[0]) > 1e-3 * expected[0]
