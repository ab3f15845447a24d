"""Extension of a run: the result is that of a longer run from the start, or an error gives the reason."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from archlab.digests import verify
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.files import STUDY
from archlab.training import run_folder
from archlab.training.callback import Callback
from archlab.training.checkpoint import newest_checkpoint
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import config

pytestmark = pytest.mark.usefixtures("shared_cache")

CONSTANT = ("train.schedule=constant", "train.warmup=2", "model.dropout=0.1")
WSD = ("train.schedule=wsd", "train.warmup=2", "train.decay=0.5")


class Notes(Callback):
    def __init__(self, stop_at=None):
        self.notes, self.steps, self._stop_at = [], [], stop_at

    def on_note(self, text):
        self.notes.append(text)

    def on_step(self, metrics):
        self.steps.append(metrics.step)
        if metrics.step == self._stop_at:
            raise KeyboardInterrupt


def updates(folder):
    kept = ("step", "tokens", "loss", "grad_norm", "lr")
    return [{key: line[key] for key in kept} for line in RunFolder(folder).metrics() if "lr" in line]


def weights(folder):
    (_, path), damaged = newest_checkpoint(folder / "checkpoints")
    assert damaged == []
    return load_file(path / "model.safetensors")


def assert_same_run(one, other):
    assert updates(one) == updates(other)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    scores = [RunFolder(folder).summary() for folder in (one, other)]
    assert len({(s.status, s.steps, s.tokens, s.bits_per_byte, s.train_loss) for s in scores}) == 1
    documents = [RunFolder(folder).documents() for folder in (one, other)]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("short", "long", "begins_with"),
    [
        (CONSTANT, CONSTANT, 11),
        ((*CONSTANT, "train.optimizer=muon"), (*CONSTANT, "train.optimizer=muon"), 11),
        (WSD, WSD, 8),  # 4 steps of decay are repeated; 2 steps of warm-up and half of 8 come before
        (WSD, (*WSD[:2], "train.decay=0.2"), 8),
        (CONSTANT[:2], WSD, 11),  # a decay at the end of a constant rate
    ],
)
def test_a_finished_run_is_extended_as_if_it_had_been_so_from_the_start(text, tmp_path, short, long, begins_with):
    longer = config(*long, "train.tokens=1280", data=text)
    train(longer, tmp_path / "whole", Callback())
    train(config(*short, data=text), tmp_path / "run", Callback())
    notes = Notes()
    train(longer, tmp_path / "run", notes)
    assert notes.steps == list(range(begins_with, 21))
    assert "the run of 640 training tokens is extended to 1,280" in notes.notes
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert load_config(tmp_path / "run") == load_config(tmp_path / "whole")
    again = Notes()
    train(longer, tmp_path / "run", again)
    assert again.steps == []
    with pytest.raises(
        UserError,
        match=r"another config; choose another folder\n  train.tokens: 1280 in the folder, 640 in the new config",
    ):
        train(config(*short, "train.eval_every=1", data=text), tmp_path / "run", Callback())


def test_an_interrupted_run_is_extended_too(text, tmp_path):
    longer = config(*WSD, "train.tokens=1280", data=text)
    train(longer, tmp_path / "whole", Callback())
    with pytest.raises(KeyboardInterrupt):
        train(config(*WSD, "train.checkpoint_every=2", data=text), tmp_path / "run", Notes(stop_at=9))
    notes = Notes()
    train(longer, tmp_path / "run", notes)  # step 8 used a learning rate that had already fallen
    assert notes.steps[0] == 8
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_is_extended_twice(text, tmp_path):
    train(config(*CONSTANT, "train.tokens=1280", data=text), tmp_path / "whole", Callback())
    for tokens in (320, 640, 1280):
        train(config(*CONSTANT, f"train.tokens={tokens}", data=text), tmp_path / "run", Callback())
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("kill_at", ["remove_after", "write_with_digests"])
@pytest.mark.parametrize("tokens", [640, 1280])
def test_a_kill_while_it_is_extended_leaves_a_run_that_goes_on_as_either(text, tmp_path, monkeypatch, kill_at, tokens):
    short, longer = config(*WSD, data=text), config(*WSD, "train.tokens=1280", data=text)
    wanted = longer if tokens == 1280 else short
    train(wanted, tmp_path / "whole", Callback())
    train(short, tmp_path / "run", Callback())

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, kill_at, killed)
    with pytest.raises(KeyboardInterrupt):
        train(longer, tmp_path / "run", Callback())
    monkeypatch.undo()
    train(wanted, tmp_path / "run", Callback())
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    verify(tmp_path / "run" / "config.yaml")


@pytest.mark.parametrize(
    ("short", "long", "why"),
    [
        (
            ("train.warmup=2",),
            (),
            "with train.schedule=cosine, a longer run has different learning rates from step 4 on; "
            "only runs with train.schedule=constant, or with wsd before the decay starts, can be extended",
        ),
        (("train.schedule=linear", "train.warmup=0"), (), "with train.schedule=linear, a longer run has different"),
        (
            ("train.schedule=constant", "train.warmup=0.2"),
            (),
            "train.warmup=0.2 means 4 warmup steps of 20, but the run began with 2 of 10; set train.warmup=2",
        ),
        (
            CONSTANT[:2],
            ("train.schedule=cosine",),
            "the learning rates differ from step 4 on, and no earlier checkpoint is left",
        ),
    ],
)
def test_another_learning_rate_is_refused_with_the_reason(text, tmp_path, short, long, why):
    train(config(*short, data=text), tmp_path / "run", Callback())
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    refusal = f"has 640 training tokens and cannot be extended to 1,280: {why}"
    with pytest.raises(UserError, match=re.escape(refusal)) as refused:
        train(config(*short, *long, "train.tokens=1280", data=text), tmp_path / "run", Callback())
    assert str(refused.value).endswith("to train from the start, choose another folder")
    assert {path: path.read_bytes() for path in before} == before
    if fix := re.search(r"set (train\.warmup=\d+)", str(refused.value)):
        train(config(*short, fix[1], "train.tokens=1280", data=text), tmp_path / "run", Callback())
        assert load_config(tmp_path / "run").train.warmup == 2


def test_a_run_cannot_continue_from_a_last_checkpoint_without_the_optimizer(text, tmp_path):
    train(config(*CONSTANT, data=text), tmp_path, Callback())
    folder = tmp_path / "checkpoints" / "step-00000010"
    (folder / "optimizer.safetensors").unlink()
    digests = json.loads((folder / "digests.json").read_text())
    del digests["optimizer.safetensors"]
    (folder / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(UserError, match="no checkpoint with the optimizer state is left"):
        train(config(*CONSTANT, "train.tokens=1280", data=text), tmp_path, Callback())


def test_more_than_the_length_is_another_run(text, tmp_path):
    train(config(*CONSTANT, data=text), tmp_path, Callback())
    with pytest.raises(UserError, match=r"contains a run with another config.*\n  train.tokens.*\n  train.lr"):
        train(config(*CONSTANT, "train.tokens=1280", "train.lr=0.5", data=text), tmp_path, Callback())


def test_a_run_of_a_study_has_the_length_that_the_study_says(text, tmp_path):
    """Its folder is named after its config, and it keeps no checkpoint for a longer run."""
    (tmp_path / STUDY).write_text("question: ?\n")
    run = tmp_path / "runs" / "0123456789ab"
    train(config(*WSD, data=text), run, Callback())
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000010"]
    assert not (run / "checkpoints" / "step-00000010" / "optimizer.safetensors").exists()
    with pytest.raises(UserError, match="belongs to a study, which sets the length of its runs"):
        train(config(*WSD, "train.tokens=1280", data=text), run, Callback())
    assert RunFolder(run).summary().steps == 10
