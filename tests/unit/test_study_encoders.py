"""Equal budgets of arms with and without an encoder (Raffel 2020), against torch's FLOP counter and parameter counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from archlab.config.check import validate
from archlab.config.core.yaml_text import to_yaml
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import resolve_train, tokens_predicted
from archlab.data.batch import Batch
from archlab.data.objectives import Batches, random_batch
from archlab.data.open import open_training_data
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.pricing.summary import cost
from archlab.pricing.work import computed_training_flops
from archlab.study.arm import Arm
from archlab.study.design import arms
from archlab.study.schema import StudyConfig
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.step import update
from tiny import MODEL, TRAIN, config

CPU = Device("cpu", torch.float32)
WINDOW, ROWS = 32, 8
VISIBLE, ENCODER = "model.attention.visibility=prefix", "model.encoder.n_layers=2"
MIXTURE = "{kind: mixture, parts: {r: {objective.kind: span_corruption}, s: {objective.kind: prefix, share: 2}}}"
FORMS = {
    "next_token": (),
    "masked": ("model.attention.visibility=two_sided", "train.objective.kind=masked"),
    "prefix": ("train.objective.kind=prefix", VISIBLE),
    "prefix, encoder": ("train.objective={kind: prefix, rate: 0.25}", ENCODER),
    "spans": ("train.objective.kind=span_corruption", VISIBLE),
    "spans, encoder": ("train.objective.kind=span_corruption", ENCODER),
    "seq2seq": ("train.objective.kind=seq2seq", VISIBLE),
    "seq2seq, encoder": ("train.objective.kind=seq2seq", ENCODER),
    "mixture": (f"train.objective={MIXTURE}", VISIBLE),
    "mixture, encoder": (f"train.objective={MIXTURE}", ENCODER),
    "recall": ("data.task.kind=recall",),
    "states": ("data.task.kind=state_tracking",),
    "reversal": ("data.task={kind: reverse, longest: 8}",),
    "reversal, prefix": ("data.task={kind: reverse, longest: 8}", "train.objective.kind=seq2seq", VISIBLE),
    "reversal, encoder": ("data.task={kind: reverse, longest: 8}", "train.objective.kind=seq2seq", ENCODER),
}


def counted_by_torch(config: Config) -> tuple[float, Batch]:
    """Return the FLOPs of one training step per window, and the batch. The reference kernel computes all pairs."""
    train = resolve_train(config)
    model = Decoder(config.model, kernel="reference").train()
    optimizer = make_optimizer(model, train)
    if isinstance(config.data.task, Task):
        data = open_training_data(config.data, config.model.vocab_size)
        batch = Batches.of(config, data).training(0, 0, train.rows, train.seq_len)
    else:
        tokens = np.random.default_rng(0).integers(1, 250, (train.rows, train.seq_len + 1))
        batch = random_batch(config, Windows(tokens))
    with FlopCounterMode(display=False) as counter:
        update(model, optimizer, batch, train, 0, CPU)
    return counter.get_total_flops() / train.rows, batch


def priced(config: Config, batch: Batch) -> float:
    """Return the FLOPs of a window: the price, plus pairs that only the reference kernel computes, plus the logits of
    this batch beyond the mean number of predicted tokens."""
    train, model = resolve_train(config), config.model
    read = batch.tokens.shape[1]
    is_causal = model.attention.visibility == "causal"
    pairs = 4 * model.attention.n_heads * 8 * model.n_layers * read * (read - 1) / 2 if is_causal else 0
    counted = np.ones(batch.targets.shape) if batch.counted is None else batch.counted
    predicted = tokens_predicted(config) or read
    logits = 2 * model.d_model * model.vocab_size * (counted.sum(1).mean() - predicted)
    return computed_training_flops(config) * train.seq_len + 3 * (pairs + logits)


@pytest.mark.parametrize("form", FORMS)
def test_the_price_of_a_window_is_what_torch_counts_in_a_training_step(form: str) -> None:
    sizes = (f"train.seq_len={WINDOW}", f"train.batch_tokens={WINDOW * ROWS}", "model.max_seq_len=64")
    settings = config(*sizes, *FORMS[form])
    found, batch = counted_by_torch(settings)
    assert found == pytest.approx(priced(settings, batch), rel=1e-9)
    summary = cost(settings)
    matrices = sum(work.flops for work in summary.computed_work["training"] if work.kind in ("products", "attention"))
    assert matrices == pytest.approx(summary.computed_training_flops_per_token * WINDOW * ROWS)


def test_a_task_costs_the_same_with_a_causal_mask_and_with_a_visible_source() -> None:
    """Both read the same windows and compute logits for the same answers."""
    task = ("data.task={kind: reverse, longest: 8}", f"train.seq_len={WINDOW}", f"train.batch_tokens={WINDOW * ROWS}")
    causal, prefix = config(*task), config(*task, "train.objective.kind=seq2seq", VISIBLE)
    assert counted_by_torch(causal)[0] == counted_by_torch(prefix)[0]
    pairs = 3 * 4 * causal.model.attention.n_heads * 8 * causal.model.n_layers * (WINDOW - 1) / 2
    assert computed_training_flops(prefix) - computed_training_flops(causal) == pytest.approx(pairs)


# --- Raffel's comparisons, as studies -----------------------------------------------------------------------------

STUDY = """
question: Does an encoder pay at equal {quantity}?
base: base.yaml
set:
  data.reserve: [sentinels:3]
  model: {{d_model: 64, n_layers: 6, max_seq_len: 64, mlp.d_ff: 192, vocab_size: 300}}
  train: {{seq_len: 32, batch_tokens: 256}}
  train.objective.kind: span_corruption
budget: {{tokens: 2560}}
equal: {{{equal}}}
measure: [continuation]
arms:
  decoder: {{model.attention.visibility: prefix}}
  encoder-decoder: {{model.encoder.n_layers: {encoder}{more}}}
"""


def designed(folder: Path, monkeypatch: pytest.MonkeyPatch, **values: Any) -> list[Arm]:
    monkeypatch.chdir(folder)
    (folder / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    text = STUDY.format(**{"quantity": "FLOPs", "more": "", **values})
    return arms(validate(StudyConfig, yaml.safe_load(text), "study.yaml"))


def in_layers(arm: Arm) -> int:
    model = Decoder(arm.config.model)
    return sum(p.numel() for name, p in model.named_parameters() if "layers." in name)


@pytest.mark.parametrize("by", ["model.mlp.d_ff", "model.d_model"])
def test_twice_the_layers_cost_about_as_many_flops(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder with 6 layers and a decoder with 6 layers read the tokens of a window once, as 6 layers without an
    encoder do. Cross-attention, the shorter head and the tolerance make small differences."""
    without, with_encoder = designed(tmp_path, monkeypatch, equal="flops: 50%", encoder=6)
    assert with_encoder.adjusted == {}
    ratio = computed_training_flops(with_encoder.config) / computed_training_flops(without.config)
    assert 0.9 < ratio < 1.15
    assert in_layers(with_encoder) / in_layers(without) == pytest.approx(2.2, abs=0.1)
    reference, fitted = designed(tmp_path, monkeypatch, equal=f"flops: 2%, by: {by}", encoder=6)
    assert list(fitted.adjusted) == [by]
    flops = [counted_by_torch(arm.config)[0] for arm in (reference, fitted)]
    assert flops[1] == pytest.approx(flops[0], rel=0.03)  # torch counts the hidden pairs of the decoder, too
    assert in_layers(fitted) > 1.8 * in_layers(reference)


@pytest.mark.parametrize(
    ("by", "encoder", "more"),
    [
        ("model.mlp.d_ff", 3, ", model.n_layers: 3"),
        ("model.mlp.d_ff", 6, ""),
        ("model.n_layers", 3, ""),
        ("model.d_model", 6, ""),
    ],
)
def test_parameters_of_both_stacks_are_fitted(
    by: str, encoder: int, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    equal = f"parameters: 7%, by: {by}"
    reference, fitted = designed(tmp_path, monkeypatch, quantity="parameters", equal=equal, encoder=encoder, more=more)
    counts = [sum(p.numel() for p in Decoder(arm.config.model).parameters()) for arm in (reference, fitted)]
    assert counts[1] == pytest.approx(counts[0], rel=0.07)
    assert set(fitted.adjusted) <= {by}
    flops = [computed_training_flops(arm.config) for arm in (reference, fitted)]
    assert flops[1] < 0.7 * flops[0]


def test_a_budget_of_flops_pays_for_source_and_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    raw = yaml.safe_load(STUDY.format(quantity="FLOPs", equal="flops: 50%", encoder=6, more=""))
    raw["budget"] = {"flops": 5e10}
    for arm in arms(validate(StudyConfig, raw, "study.yaml")):
        train, (per_window, _) = resolve_train(arm.config), counted_by_torch(arm.config)
        assert train.trained / train.seq_len * per_window == pytest.approx(5e10, rel=0.03)
