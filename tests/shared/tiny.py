"""Minimal configs and texts that train in a moment, for the tests of training and studies."""

import random
from pathlib import Path
from types import SimpleNamespace

import torch

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.study.executors import local
from archlab.study.executors.executor import OnProgress, RunProgress, train_run
from archlab.study.executors.local import Local
from archlab.study.runs import Run
from archlab.training.callback import Callback, StepMetrics
from archlab.training.run_folder import RunFolder

torch.set_num_threads(1)

MODEL = {
    "vocab_size": 300,
    "d_model": 32,
    "n_layers": 2,
    "max_seq_len": 16,
    "attention": {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8},
    "mlp": {"d_ff": 64},
}
TRAIN = {"tokens": 640, "batch_tokens": 64, "eval_tokens": 256, "dtype": "float32", "device": "cpu"}


def config(*overrides: str, data: Path | str = "python-stdlib") -> Config:
    """Return the tiny model with 10 steps of 4 windows, and the overrides."""
    return build_config({"model": MODEL, "train": TRAIN, "data": {"path": str(data)}}, overrides, "tiny")


def write_text(folder: Path, name: str = "text.txt", lines: int = 2000) -> Path:
    """Write a text file of repetitive made-up lines, always the same ones."""
    words = ("the cat sat on a mat", "and saw one dog", "run far away", "from its old", "red house")
    draw = random.Random(0)
    text = "\n".join(" ".join(draw.choices(words, k=3)) for _ in range(lines))
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


class Killed(Callback):
    """Callback that ends a run with an error after step 7."""

    def on_step(self, metrics: StepMetrics) -> None:
        if metrics.step == 7:
            raise RuntimeError("killed")


def losses(run: Path) -> list[float]:
    """Return the training loss of each step of a run folder."""
    return [line["loss"] for line in RunFolder(run).metrics() if "grad_norm" in line]


def run_here(_: Local, runs: list[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
    """Run all runs in this process, as a replacement for an executor's `run_all`."""
    ended = [train_run(run, study, local._SendProgress(run, SimpleNamespace(send=on_progress))) for run in runs]
    return [progress for progress in ended if progress.failed]
