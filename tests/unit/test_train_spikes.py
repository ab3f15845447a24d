"""Steps whose loss or gradient jumps: detected by a simple formula, and noted, skipped or passed over."""

import numpy as np
import pytest
import torch

from archlab.config.schema import Spikes
from archlab.data.text_data import TextData
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.training import loop as training
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.spikes import MOST_REWINDS, SpikeWatch
from archlab.training.train import train
from tiny import config

AT = 13
"""Batch, counted from 0, whose text is unlike all other text."""


pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def read(monkeypatch):
    """Record the batches that are read. From AT on, `bad` batches consist of one token that is rare elsewhere."""
    seen, plain = [], TextData.windows

    def windows(data, seed, step, rows, seq_len):
        seen.append(step)
        if step in bad:
            return Windows(np.full((rows, seq_len + 1), 7))
        return plain(data, seed, step, rows, seq_len)

    bad = {AT}
    monkeypatch.setattr(TextData, "windows", windows)
    return seen, bad


def settings(text, action, *more):
    spikes = f"train.spikes={{action: {action}, window: 8, deviations: 5}}"
    return config(spikes, "train.tokens=1280", "train.checkpoint_every=5", "train.eval_every=20", *more, data=text)


def test_deviations_above_the_mean_of_the_window():
    watch = SpikeWatch(Spikes(window=4, deviations=3), [])
    losses, norms = [3.0, 3.1, 2.9, 3.05, 3.02, 9.0, 3.0], [1.0, 1.2, 0.9, 1.1, 5.0, 1.0, 1.0]
    found = [watch.add(*pair) for pair in zip(losses, norms, strict=True)]

    def above(values, i):
        window = values[i - 4 : i]
        return (values[i] - np.mean(window)) / np.std(window, ddof=1)

    assert found[:4] == [None] * 4, "the window is not full"
    assert found[4] == pytest.approx(above(norms, 4))
    assert found[5] == pytest.approx(above(losses, 5))
    assert found[6] is None


def test_a_run_that_goes_on_knows_the_window():
    whole, draw = SpikeWatch(Spikes(window=5, deviations=1), []), np.random.default_rng(0)
    pairs = draw.random((20, 2)).tolist()
    found = [whole.add(*pair) for pair in pairs]
    lines = [{"step": i + 1, "loss": a, "grad_norm": b} for i, (a, b) in enumerate(pairs)]
    for done in (0, 3, 11):
        again = SpikeWatch(Spikes(window=5, deviations=1), lines[:done])
        assert [again.add(*pair) for pair in pairs[done:]] == found[done:]


@pytest.mark.slow
def test_noted(text, tmp_path, read):
    summary = train(settings(text, "note"), tmp_path, Callback())
    metrics = RunFolder(tmp_path).metrics()
    assert [line["step"] for line in metrics if "spike" in line] == [AT + 1]
    assert (summary.spikes, summary.steps) == (1, 20)


def test_skipped(text, tmp_path, read, monkeypatch):
    """Only this batch makes no update."""
    changed, update = [], training.update

    def watched(model: Decoder, *args, **how):
        before = [p.clone() for p in model.parameters()]
        result = update(model, *args, **how)
        changed.append(not all(map(torch.equal, before, model.parameters())))
        return result

    monkeypatch.setattr(training, "update", watched)
    summary = train(settings(text, "skip"), tmp_path, Callback())
    assert [i for i, moved in enumerate(changed) if not moved] == [AT]
    line = next(line for line in RunFolder(tmp_path).metrics() if "spike" in line)
    assert line["skipped"] == 1
    assert "lr" not in line
    assert (summary.spikes, summary.steps) == (1, 19)


@pytest.mark.slow
def test_gone_back(text, tmp_path, read):
    """The run goes back to the checkpoint of step 10, and continues with the text after the spike.

    A run that is stopped later resumes in the same way.
    """
    seen, _ = read
    whole = train(settings(text, "rewind"), tmp_path / "whole", Callback())
    assert seen == [*range(AT + 1), *range(AT + 1, AT + 11)]
    (line,) = (line for line in RunFolder(tmp_path / "whole").metrics() if "spike" in line)
    assert (line["step"], line["rewound_from"], line["batches_passed_over"]) == (10, AT + 1, AT + 1 - 10)
    assert (whole.spikes, whole.steps) == (1, 20)

    class Stop(Callback):
        def on_step(self, metrics):
            if len(seen) == 18:
                raise KeyboardInterrupt

    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        train(settings(text, "rewind"), tmp_path / "stopped", Stop())
    assert train(settings(text, "rewind"), tmp_path / "stopped", Callback()).loss == whole.loss


@pytest.mark.slow
def test_batches_are_skipped_if_the_loss_spikes_again_after_a_rewind(text, tmp_path, read):
    _, bad = read
    bad |= {*range(AT, AT + 40)}
    summary = train(settings(text, "rewind"), tmp_path, Callback())
    assert len([line for line in RunFolder(tmp_path).metrics() if "rewound_from" in line]) <= MOST_REWINDS
    assert summary.tokens == 1280 or summary.status == "diverged"


def test_a_spike_before_any_checkpoint_is_skipped(text, tmp_path, read):
    seen, _ = read
    train(settings(text, "rewind", "train.checkpoint_every=100"), tmp_path, Callback())
    assert seen == list(range(20))
    assert [line["step"] for line in RunFolder(tmp_path).metrics() if "skipped" in line] == [AT + 1]
