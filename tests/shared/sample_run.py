"""Run folders with invented metrics, in the form in which a training leaves them."""

import numpy as np

from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary
from tiny import config

ENV = {"corpus": "c0ffee", "dtype": "float32", "device": "cpu", "threads": 1}
STEPS = 500
STEP = 64
"""Tokens per update."""


def loss(step):
    return 3.0 + 2.0 / step + 0.1 * np.sin(step)


def update(step, **more):
    value = {"step": step, "tokens": STEP * step, "loss": loss(step), "lr": 1e-3, "grad_norm": 1.0 / step}
    return {**value, "tokens_per_second": 1000.0 + step % 2, **more}


def evaluation(step):
    return {"step": step, "tokens": STEP * step, "bits_per_byte": 4 - step / STEPS, "held_out_loss": 3.0}


def begun(path, *overrides, steps=300, spikes=(), ended=None):
    """Return a run folder as a training leaves it after `steps` of 500 steps."""
    folder = RunFolder(path)
    settings = (f"train.tokens={STEPS * STEP}", *overrides)
    folder.claim(config(*settings), ENV, None)
    if steps:
        folder.log(**evaluation(0))
    for step in range(1, steps + 1):
        folder.log(**update(step, **({"spike": 7.5, "loss": 50.0} if step in spikes else {})))
        if step % 100 == 0:
            folder.log(**evaluation(step))
    if ended:
        folder.finish(
            RunSummary(
                status=ended, why=None if ended == "finished" else "a loss is NaN", steps=steps, tokens=STEP * steps,
                bits_per_byte=3.0 if ended == "finished" else None, loss=3.0 if ended == "finished" else None,
                train_loss=3.0, tokens_per_second=1234.0, mfu=0.5, parameters=9, device="cpu", dtype="float32",
            )
        )  # fmt: skip
    return path
