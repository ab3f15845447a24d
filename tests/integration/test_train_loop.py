"""Ends of a run: finished, diverged or interrupted; and the files that it leaves."""

import math
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from archlab.data.prepare import prepare
from archlab.errors import UserError
from archlab.training import device
from archlab.training import loop as training
from archlab.training.callback import Callback
from archlab.training.evaluate import Predictions
from archlab.training.run_folder import RunFolder
from archlab.training.summary import divergence
from archlab.training.train import train
from scores import score
from tiny import config

pytestmark = pytest.mark.usefixtures("shared_cache")


class Recorder(Callback):
    """Callback that records its calls, and may raise an exception at a step."""

    def __init__(self, stop_at=None):
        self.steps, self.notes, self._stop_at = [], [], stop_at

    def on_note(self, text):
        self.notes.append(text)

    def on_weights(self, source):
        self.weights = source

    def on_step(self, metrics):
        self.steps.append(metrics)
        if metrics.step == self._stop_at:
            raise KeyboardInterrupt


def test_a_finished_run_leaves_what_it_says(text, tmp_path):
    recorder = Recorder()
    summary = train(config(data=text), tmp_path / "run", recorder)
    folder = RunFolder(tmp_path / "run")
    assert (summary.status, summary.steps, summary.tokens) == ("finished", 10, 640)
    assert [metrics.step for metrics in recorder.steps] == list(range(1, 11))
    metrics = folder.metrics()
    updates = [line for line in metrics if "lr" in line]
    evaluations = [line for line in metrics if "bits_per_byte" in line]
    assert [line["tokens"] for line in updates] == list(range(64, 641, 64))
    assert [line["step"] for line in evaluations] == list(range(11))
    assert (evaluations[0]["tokens"], metrics[0]) == (0, evaluations[0])
    assert summary.bits_per_byte == evaluations[-1]["bits_per_byte"] == recorder.steps[-1].score.bits_per_byte
    assert summary.train_loss == updates[-1]["loss"]
    assert folder.summary() == summary
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000010"]


def test_a_run_continues_with_the_attention_kernel_with_which_it_began(text, tmp_path, monkeypatch):
    """A measurement of the machine chooses the kernel. Another result would change the losses of a run that goes on."""
    settings = config("train.dtype=bfloat16", "train.checkpoint_every=1", data=text)
    fast = {"whole": 512, "cut": 512, "rest": 0}

    def trained(name, out, stop_at=None):
        monkeypatch.setattr("archlab.training.train.products_up_to", lambda device: fast[name])
        return train(settings, tmp_path / out, Recorder(stop_at))

    trained("whole", "whole")
    with pytest.raises(KeyboardInterrupt):
        trained("cut", "cut", stop_at=4)
    trained("rest", "cut")
    trained("rest", "other")
    losses = {n: [line.get("loss") for line in RunFolder(tmp_path / n).metrics()] for n in ("whole", "cut", "other")}
    assert losses["whole"] == losses["cut"] != losses["other"]
    assert RunFolder(tmp_path / "cut").environment()["attention"] == {"products": 2}


def test_rows_of_the_vocabulary_that_the_data_lack_are_noted(text, tmp_path):
    prepare([str(text)], tmp_path / "data", vocab_size=300, held_out=0.05)
    for size, notes in (
        (300, []),
        (
            4096,
            [
                "model.vocab_size is 4,096, but the data has only 300 token ids; embedding rows from 300 on are never used"
            ],
        ),
    ):
        recorder = Recorder()
        train(config(f"model.vocab_size={size}", data=tmp_path / "data"), tmp_path / str(size), recorder)
        assert recorder.notes == notes


def test_a_run_goes_on_in_the_number_format_in_which_it_began(text, tmp_path, monkeypatch):
    """The measurement behind `auto` may have another result next time."""
    asked = config("train.dtype=auto", "train.checkpoint_every=2", data=text)
    monkeypatch.setattr(device, "_cpu_gains_by_bfloat16", lambda: False)
    whole = train(asked, tmp_path / "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "stopped", Recorder(stop_at=5))
    monkeypatch.setattr(device, "_cpu_gains_by_bfloat16", lambda: True)
    gone_on = train(asked, tmp_path / "stopped", Callback())
    assert (gone_on.loss, gone_on.train_loss) == (whole.loss, whole.train_loss)
    assert RunFolder(tmp_path / "stopped").environment()["dtype"] == "float32"


def test_a_finished_run_is_only_read(text, tmp_path):
    summary = train(config(data=text), tmp_path / "run", Callback())
    recorder = Recorder()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert train(config(data=text), tmp_path / "run", recorder) == summary
    assert recorder.steps == []
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_nan_loss_ends_the_run_as_diverged(text, tmp_path):
    """At this learning rate, the first update already exceeds the range of float32."""
    run = config("train.lr=1e38", "train.warmup=0", "train.eval_every=10", data=text)
    summary = train(run, tmp_path, Callback())
    assert summary.status == "diverged"
    assert summary.bits_per_byte is None
    assert (summary.steps < 10, summary.why) == (True, "a loss or gradient is NaN or infinite")
    last = RunFolder(tmp_path).metrics()[-1]
    assert last["diverged"] is True
    assert last["step"] == summary.steps + 1
    assert train(run, tmp_path, Callback()) == summary


def test_a_nan_in_evaluation_also_counts_as_divergence(text, tmp_path, monkeypatch):
    """The last update may ruin a model whose last training loss was finite."""
    broken = Predictions(np.full((1, 16), np.nan, np.float32), None)
    monkeypatch.setattr(training, "predict", lambda *_, **__: broken)
    summary = train(config("train.eval_every=10", data=text), tmp_path, Callback())
    assert (summary.status, summary.steps, summary.bits_per_byte) == ("diverged", 10, None)
    assert RunFolder(tmp_path).metrics()[-1] == {"step": 10, "diverged": True, "held_out_loss": "nan"}


UNIFORM = math.log(300)


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        (6.05, 5.9, None),  # four steps of a tiny model: training has only begun
        (5.7, 5.7001, None),  # nothing was learned or lost
        (15.7, 3.0, None),
        (3.0, 2.9, None),
        (15.7, 6.5, "it ended more than a tenth worse than a uniform guess (6.50 against 5.70 nats per token)"),
        (5.7, 1e6, "it ended more than a tenth worse than a uniform guess (1,000,000.00 against 5.70 nats per token)"),
        (5.7, 6.0, "it ended worse than before its first step (6.00 against 5.70 nats per token)"),
        (3.0, 3.5, "it ended worse than before its first step (3.50 against 3.00 nats per token)"),
    ],
)
def test_what_ends_worse_than_a_guess_or_than_it_began_has_diverged(first, last, why):
    assert divergence(first, last, 300, is_imported=False) == why


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        (3.0, 3.5, None),
        (8.1, 7.9, None),  # a change of the weights has made them worse than a guess
        (3.0, 6.5, "it ended more than a tenth worse than a uniform guess (6.50 against 5.70 nats per token)"),
    ],
)
def test_trained_weights_may_become_worse_but_not_worse_than_a_guess(first, last, why):
    assert divergence(first, last, 300, is_imported=True) == why


@pytest.mark.parametrize("eval_every", [1, 10])
def test_a_run_that_ends_badly_has_diverged_however_often_it_was_evaluated(text, tmp_path, eval_every):
    # At larger rates, scores are so large that fused attention gives NaN gradients on some processors.
    summary = train(config("train.lr=2", f"train.eval_every={eval_every}", data=text), tmp_path, Callback())
    evaluations = [line for line in RunFolder(tmp_path).metrics() if "bits_per_byte" in line]
    assert evaluations[0]["held_out_loss"] == pytest.approx(UNIFORM, rel=0.2)
    assert evaluations[-1]["held_out_loss"] > 1.1 * UNIFORM
    assert (summary.status, summary.bits_per_byte, summary.loss) == ("diverged", None, None)
    assert "worse than a uniform guess" in summary.why


def deterministic(folder):
    kept = ("step", "loss", "grad_norm", "lr", "bits_per_byte", "held_out_loss")
    return [{k: line[k] for k in kept if k in line} for line in RunFolder(folder).metrics()]


@pytest.mark.parametrize("stop_at", [1, 4, 9])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(text, tmp_path, stop_at):
    run = config("model.dropout=0.1", "train.checkpoint_every=3", data=text)
    whole = train(run, tmp_path / "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "parts", Recorder(stop_at))
    rest = Recorder()
    summary = train(run, tmp_path / "parts", rest)
    assert rest.steps[0].step == (stop_at - 1) // 3 * 3 + 1
    assert summary.bits_per_byte == whole.bits_per_byte
    assert deterministic(tmp_path / "parts") == deterministic(tmp_path / "whole")


@pytest.mark.parametrize("ends_early", [False, True])
def test_deterministic_algorithms_are_used_during_training_alone(text, tmp_path, ends_early):
    class Watching(Callback):
        def on_step(self, metrics):
            used.append(torch.are_deterministic_algorithms_enabled())
            if ends_early:
                raise KeyboardInterrupt

    used = list[bool]()
    run = config("train.deterministic=true", data=text)
    with pytest.raises(KeyboardInterrupt) if ends_early else nullcontext():
        train(run, tmp_path / "a", Watching())
    assert set(used) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


class Signals(Callback):
    """Callback that sends this process a signal at a step."""

    def __init__(self, step, number=signal.SIGINT):
        self._step, self._number = step, number

    def on_step(self, metrics):
        if metrics.step == self._step:
            signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_at_once_with_a_checkpoint(text, tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        train(config("train.checkpoint_every=10", data=text), tmp_path, Signals(4, number))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    assert RunFolder(tmp_path).summary() is None
    assert signal.getsignal(number) is before


def test_a_signal_at_the_last_step_loses_neither_the_run_nor_the_signal(text, tmp_path):
    """Otherwise a worker that was asked to stop would begin the next run."""
    with pytest.raises(KeyboardInterrupt):
        train(config(data=text), tmp_path, Signals(10))
    assert RunFolder(tmp_path).summary().status == "finished"


def test_a_kill_between_the_last_checkpoint_and_the_summary(text, tmp_path, monkeypatch):
    run = config(data=text)
    whole = train(run, tmp_path / "whole", Callback())

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "parts", Callback())
    monkeypatch.undo()
    assert train(run, tmp_path / "parts", Callback()).bits_per_byte == whole.bits_per_byte
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step-00000010"]


def test_a_config_that_the_text_cannot_serve_leaves_nothing_behind(text, tmp_path):
    with pytest.raises(
        UserError, match=r"model\.vocab_size is 100; allowed: 257 or more: one token for each of 256 bytes"
    ):
        train(config("model.vocab_size=100", data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("visibility", ["prefix", "two_sided"])
def test_what_sees_the_tokens_that_it_would_predict_is_neither_trained_nor_scored(text, tmp_path, visibility):
    message = rf"model\.attention\.visibility  {visibility}; training and scoring predict each token from those before"
    with pytest.raises(UserError, match=message):
        train(config(f"model.attention.visibility={visibility}", data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=message):
        score("tiny-llama", (f"model.attention.visibility={visibility}",), None)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(text, tmp_path):
    run = config("train.checkpoint_every=3", data=text)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, Recorder(8))
    (tmp_path / "checkpoints" / "step-00000006" / "optimizer.safetensors").write_bytes(b"\0")
    recorder = Recorder()
    train(run, tmp_path, recorder)
    assert recorder.steps[0].step == 4
    (damage,) = recorder.notes
    assert "step-00000006/optimizer.safetensors: damaged" in damage
    assert damage.endswith("; an earlier checkpoint is used")
    assert ", step 3 of " in recorder.weights


def test_imported_weights_that_are_damaged_are_not_replaced_by_random_ones(text, tmp_path):
    run = config("train.checkpoint_every=3", data=text)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, Recorder(5))
    (tmp_path / "imported.json").write_text('{"family": "llama", "special_ids": {}, "dtype": null}')
    (tmp_path / "checkpoints" / "step-00000003" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"step-00000003/model.safetensors: missing; .*make the folder again"):
        train(run, tmp_path, Callback())


def test_what_a_finished_run_says_can_be_read_off_its_last_checkpoint_again(text, tmp_path, monkeypatch):
    whole = train(config(data=text), tmp_path, Callback())
    lines = RunFolder(tmp_path).metrics()
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"metrics.jsonl: damaged"):
        RunFolder(tmp_path).metrics()
    (tmp_path / "summary.json").unlink()
    monkeypatch.setattr(training, "update", None)  # without another step
    again = train(config(data=text), tmp_path, Callback())
    assert again.model_dump(exclude={"mfu"}) == whole.model_dump(exclude={"mfu"})
    assert RunFolder(tmp_path).metrics() == lines
