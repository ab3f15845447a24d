"""A vocabulary that needs more than two bytes per token, from text to a trained model."""

import random
from pathlib import Path

import numpy as np
import pytest

from archlab.data.prepare import prepare
from archlab.data.text_data import TextData, TextSource
from archlab.training.train import train
from scores import score
from tiny import config

MANY = 66_000


def test_tokens_beyond_65535_are_read_and_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(50_000)]
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text(" ".join(words[1250 * i : 1250 * (i + 1)] * 2))
    data = prepare([str(tmp_path / "text")], tmp_path / "tokens", vocab_size=MANY, held_out=0.1)
    manifest = data.manifest
    assert (manifest.vocab_size, manifest.dtype) == (MANY, "uint32")
    shards = [shard for part in manifest.parts for shard in part.shards]
    assert all((data.path / shard.file).stat().st_size == 4 * shard.tokens for shard in shards)

    ids = data.train.read(0, len(data.train))
    assert (ids >= 1 << 16).sum() > 100
    documents = np.split(ids, np.flatnonzero(ids == manifest.end_of_text)[1:])
    texts = {file.read_text() for file in (tmp_path / "text").iterdir()}
    assert all(data.tokenizer.decode(document[1:].tolist()) in texts for document in documents)
    windows = TextData([TextSource("text", data)]).windows(0, 0, 64, 16).tokens
    assert windows.max() >= 1 << 16

    run = config(f"model.vocab_size={MANY}", "train.tokens=192", "train.batch_tokens=64", data=data.path)
    assert train(run, tmp_path / "run").status == "finished"
    assert score(str(tmp_path / "run"), (), 64).bits_per_byte is not None
