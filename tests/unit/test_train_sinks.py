"""Metrics beside the run's folder: what a tool is told, that it goes on with a run, and that it cannot end one.

TensorBoard's files are written by the real package and read back here; the others are tried by hand (docs/watching.md).
"""

import json
import struct
import tomllib
from pathlib import Path
from typing import ClassVar, get_args

import pytest
from tensorboardX.proto.event_pb2 import Event

from archlab.config.problems import ConfigError
from archlab.config.schema import LogTo
from archlab.study.runs import Run
from archlab.training import sinks
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.sinks import numbers
from archlab.training.train import train
from tiny import config

pytestmark = pytest.mark.usefixtures("shared_cache")

LOGGED = ("train.log=[tensorboard]", "train.probe_every=4", "train.checkpoint_every=4", "train.eval_every=5")


class Notes(Callback):
    def __init__(self, stop_at=None):
        self.notes, self.stop_at = [], stop_at

    def on_note(self, text):
        self.notes.append(text)

    def on_step(self, metrics):
        if metrics.step == self.stop_at:
            raise KeyboardInterrupt


def shown(folder):
    """Return (name, step) -> values, as TensorBoard reads event files.

    It reads them in order. The first step of a file hides that step and later ones in earlier files
    (`purge_orphaned_data`).
    """
    found: dict[tuple[str, int], list[float]] = {}
    for file in sorted((folder / "tensorboard").iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):  # TFRecord: length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[at : at + 8])
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            if event.WhichOneof("what") == "session_log":
                found = {key: values for key, values in found.items() if key[1] < event.step}
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def measured(folder):
    """Return the same from metrics.jsonl."""
    found = dict[tuple[str, int], list[float]]()
    for line in RunFolder(folder).metrics():
        for name, value in numbers({name: value for name, value in line.items() if name != "step"}):
            found.setdefault((name, line["step"]), []).append(pytest.approx(value, rel=1e-6))
    return found


@pytest.mark.slow
def test_every_number_of_the_metrics_is_in_tensorboard(text, tmp_path):
    train(config(*LOGGED, data=text), tmp_path)
    found = shown(tmp_path)
    assert found == measured(tmp_path)
    names = {name for name, _ in found}
    assert {"loss", "lr", "grad_norm", "bits_per_byte", "probes/log_z", "probes/entropy/1", "probes/entropy/2"} <= names


@pytest.mark.slow
def test_a_run_that_goes_on_is_drawn_once(text, tmp_path):
    """The run is stopped between two checkpoints, so that one step is repeated."""
    settings = config(*LOGGED, data=text)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path, Notes(stop_at=6))
    first = json.loads((tmp_path / "log.json").read_text())
    train(settings, tmp_path)
    assert shown(tmp_path) == measured(tmp_path)
    assert json.loads((tmp_path / "log.json").read_text()) == first


class Recorder:
    """Tool that fails in the chosen calls."""

    calls: ClassVar[list] = []
    fails_at: ClassVar[tuple] = ()

    def __init__(self, library, run):
        assert library is json
        self._tell("open", run.id)

    def begin(self, step):
        self._tell("begin", step)

    def log(self, step, measures):
        self._tell("log", step)

    def close(self, *, ended):
        self._tell("close", ended)

    def _tell(self, what, value):
        type(self).calls.append((what, value))
        if (what, value) in self.fails_at or what in self.fails_at:
            raise OSError(f"no route to host\nat {what}")


@pytest.fixture
def recorder(monkeypatch):
    """Replace wandb by the recorder."""
    monkeypatch.setitem(sinks.SINKS, "wandb", ("json", Recorder))
    monkeypatch.setattr(Recorder, "calls", [])
    return Recorder


@pytest.mark.slow
def test_a_rewind_is_logged_and_an_interrupted_run_does_not_count_as_finished(text, tmp_path, recorder):
    settings = config("train.log=[wandb]", "train.checkpoint_every=4", "train.eval_every=10", data=text)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path, Notes(stop_at=6))
    (_, id), *calls = recorder.calls
    assert calls == [("begin", 0), *(("log", step) for step in range(7)), ("close", False)]
    recorder.calls.clear()
    train(settings, tmp_path)
    steps = [*range(5, 11), 10]  # the last one has an evaluation
    assert recorder.calls == [("open", id), ("begin", 5), *(("log", step) for step in steps), ("close", True)]
    recorder.calls.clear()
    train(settings, tmp_path)
    assert recorder.calls == [], "a finished run is only read"


@pytest.mark.parametrize("when", ["open", "begin", ("log", 3), "close"])
@pytest.mark.slow
def test_a_tool_that_fails_ends_no_training(text, tmp_path, recorder, monkeypatch, when):
    monkeypatch.setattr(recorder, "fails_at", (when,))
    notes = Notes()
    summary = train(config("train.log=[wandb]", data=text), tmp_path, notes)
    assert summary.status == "finished"
    said = "train.log: wandb has failed (OSError: no route to host); metrics.jsonl still receives all metrics"
    assert notes.notes.count(said) == 1
    if when != "close":
        assert [what for what, _ in recorder.calls].count("close") == 0, "it is told nothing more"


def test_a_missing_package_is_named_before_anything_is_written(text, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"wandb, mlflow are not installed; run: pip install 'archlab\[wandb,mlflow\]'"
    ):
        train(config("train.log=[wandb, mlflow]", data=text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_does_not_depend_on_where_its_metrics_go(text, tmp_path):
    plain, logged = (config(*more, data=text) for more in ((), ("train.log=[tensorboard]",)))
    assert Run("", plain, "c0ffee", 1).name == Run("", logged, "c0ffee", 1).name
    without = train(plain, tmp_path / "a")
    assert train(logged, tmp_path / "a") == without, "a finished run is not another one"
    logged_run = train(logged, tmp_path / "b")
    assert (logged_run.loss, logged_run.bits_per_byte) == (without.loss, without.bits_per_byte)


@pytest.mark.parametrize(
    ("said", "message"),
    [("[wandb, wandb]", "names wandb twice"), ("[tensorbord]", "did you mean tensorboard")],
)
def test_what_cannot_be_is_a_message(said, message):
    with pytest.raises(ConfigError, match=message):
        config(f"train.log={said}")


def test_every_tool_has_an_extra_and_a_class():
    assert tuple(sinks.SINKS) == get_args(LogTo)
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, (package, _) in sinks.SINKS.items():
        assert any(needed.lower().startswith(package.lower()) for needed in extras[name])
