"""Documents packed into a window: each is treated as if it were alone, in training and evaluation."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.batch import Batch, HeldOut, document_ids, next_token
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.training.callback import Printing
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.run_folder import RunFolder
from archlab.training.step import update
from archlab.training.train import train
from scores import evaluate, score

END, DEVICE = 0, Device("cpu", torch.float32)
WINDOW = np.array([[4, 5, 6, END, 7, 8, 9, 3, END, END, 2, 5, 5]])
"""Window with the end of a document, a whole one, an empty one, and the beginning of another."""
DOCUMENTS = [(0, 3), (3, 8), (8, 9), (9, 12)]
"""Bounds (first, last + 1) of each document in the inputs, which are all tokens except the last."""


def tiny(*overrides: str) -> Config:
    model = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "max_seq_len": 12, "attention": {"n_heads": 4}}
    return build_config({"model": model, "train": {"batch_tokens": 12, "tokens": 24}}, overrides)


def test_a_document_begins_at_the_end_of_text() -> None:
    ids = document_ids(WINDOW[:, :-1], END)
    assert ids is not None
    assert ids.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3]]
    assert document_ids(WINDOW, None) is None


def alone(model: Decoder) -> np.ndarray:
    """Return the loss of every target in the window, float64 [T], with each document passed separately."""
    losses = []
    for first, last in DOCUMENTS:
        logits = model(torch.from_numpy(WINDOW[:, first:last]))[0].double()
        targets = torch.from_numpy(WINDOW[0, first + 1 : last + 1])
        losses += torch.nn.functional.cross_entropy(logits, targets, reduction="none").tolist()
    return np.array(losses)


@pytest.mark.parametrize("position", ["rope", "learned", "alibi"])
def test_the_loss_is_that_of_each_document_alone(position: str) -> None:
    config = tiny(f"model.position.kind={position}")
    expected = alone(Decoder(config.model))
    losses = []
    for begins in (END, None):
        model = Decoder(config.model)
        batch = next_token(Windows(WINDOW), begins)
        losses.append(update(model, make_optimizer(model, config.train), batch, resolve_train(config), 0, DEVICE).loss)
    assert losses[0] == pytest.approx(expected.mean(), rel=1e-6)
    assert abs(losses[1] - expected.mean()) > 1e-4


def test_evaluation_is_that_of_each_document_alone() -> None:
    model, bytes_ = Decoder(tiny().model), np.array([0, *range(1, 11)])
    windows = Windows.of_text(np.concatenate([WINDOW, WINDOW]), bytes_, (END,), continues=np.zeros(2, bool))
    found = evaluate(model, HeldOut(next_token(windows, END), windows), DEVICE)
    is_text = WINDOW[0, 1:] != END
    nats, n_bytes = alone(model)[is_text].sum(), bytes_[WINDOW[0, 1:]].sum()
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-6)
    assert found.loss == pytest.approx(nats / is_text.sum(), rel=1e-6)
    assert abs(evaluate(model, HeldOut(next_token(windows), windows), DEVICE).loss - found.loss) > 1e-4


def test_packed_pairs_have_the_loss_of_each_pair_alone() -> None:
    """Two pairs of a source and a target share a row, with padding after both."""
    config = tiny("model.encoder.n_layers=1", "train.objective.kind=prefix")
    sources, targets = ([4, 5, 6], [7, 8]), ([2, 9, 3], [5, 1, 1, 6])
    losses, device = [], DEVICE
    for source, target in zip(sources, targets, strict=True):
        tokens = np.array([[END, *target]])
        alone = Batch(tokens[:, :-1], tokens[:, 1:], source=np.array([source]))
        losses.append((evaluate(Decoder(config.model), held_out(alone), device).loss, len(target)))
    expected = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
    packed = Batch(
        np.array([[END, 2, 9, END, 5, 1, 1, 8, 8]]),
        np.array([[2, 9, 3, 5, 1, 1, 6, 8, 8]]),
        counted=np.arange(9)[None] < 7,
        documents=np.array([[0] * 3 + [1] * 6]),
        lengths=np.array([7]),
        source=np.array([[4, 5, 6, 7, 8, 10]]),
        source_lengths=np.array([5]),
        source_documents=np.array([[0] * 3 + [1] * 3]),
    )
    model = Decoder(config.model)
    assert evaluate(model, held_out(packed), device).loss == pytest.approx(expected, rel=1e-6)
    trained = update(model, make_optimizer(model, config.train), packed, resolve_train(config), 0, device)
    assert trained.loss == pytest.approx(expected, rel=1e-6)


def held_out(batch: Batch) -> HeldOut:
    return HeldOut(batch, Windows(np.pad(batch.tokens, ((0, 0), (0, 1)))))


@pytest.mark.slow
def test_a_run_trains_and_scores_with_the_mask_of_its_config(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text(f"{i} cats sat on {i + 1} mats. " * 3)
    losses = {}
    for masked in ("true", "false"):
        config = tiny(
            f"train.document_mask={masked}", f"data.path={tmp_path / 'text'}", "model.vocab_size=300",
            "data.held_out=0.3", "model.max_seq_len=64", "train.batch_tokens=256", "train.tokens=1024",
            "train.eval_every=4", "train.device=cpu", "train.dtype=float32",
        )  # fmt: skip
        run = tmp_path / masked
        summary = train(config, run, Printing())
        losses[masked] = [line["loss"] for line in RunFolder(run).metrics() if "lr" in line]
        assert score(str(run), (), 65536).bits_per_byte == pytest.approx(summary.bits_per_byte, rel=1e-6)
        other = score(str(run), (f"train.document_mask={'false' if masked == 'true' else 'true'}",), 65536)
        assert abs(other.bits_per_byte - summary.bits_per_byte) > 1e-5
    assert all(abs(a - b) > 1e-6 for a, b in zip(losses["true"], losses["false"], strict=True))
