"""Weights & Biases. WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline mean what they mean to it everywhere."""

import os
from typing import Any

from archlab.training.sinks.sink import PROJECT, LoggedRun, Measures


class WandB:
    """A run of our id. Steps are an axis of our own: wandb drops what is logged of a step that it has passed, and a
    training that went back passes steps twice."""

    def __init__(self, wandb: Any, run: LoggedRun) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            resume="allow",
            config=dict(run.values),
            dir=str(run.folder),
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def begin(self, step: int) -> None:
        """Steps that come again are drawn again."""

    def log(self, step: int, measures: Measures) -> None:
        """A row."""
        self._run.log({"step": step, **measures})

    def close(self, *, ended: bool) -> None:
        """Wait until all is sent; a run that was stopped counts as crashed until it goes on."""
        self._run.finish(exit_code=0 if ended else 1)
