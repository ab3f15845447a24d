"""Learning rate of each step, and the step from which a run can be extended."""

import math
from bisect import bisect_left
from pathlib import Path
from typing import Any

from archlab.config.core.contract import breach, short
from archlab.config.core.registry import call, implements, kinds
from archlab.config.optimizer import WSD, Constant, Cosine, Linear, Schedule
from archlab.config.schema import TrainConfig
from archlab.errors import UserError
from archlab.training.checkpoint import has_optimizer, newest_checkpoint

LENGTH = {"tokens", "warmup", "schedule", "decay", "final_lr"}
"""Fields of the train section that affect only the number of steps and their learning rates."""


def learning_rate(train: TrainConfig, step: int) -> float:
    """Return the learning rate of update `step`, counted from 0.

    The rate rises linearly during warmup, then follows the shape of the schedule.
    """
    steps, warmup = train.steps, warmup_steps(train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return train.lr * call(kinds(Schedule)[train.schedule], train, done, check=_check_share)


def _check_share(kind: type[Schedule], share: Any, train: TrainConfig, done: float) -> float:
    if not isinstance(share, int | float) or not 0 <= share < math.inf:
        raise breach(kind, f"its function returned {short(share)} for done={done:g}; allowed: a finite number >= 0")
    return share


def warmup_steps(train: TrainConfig) -> int:
    """Return the number of warmup steps. The config gives it in steps or as a fraction of the run."""
    return train.warmup if isinstance(train.warmup, int) else round(train.warmup * train.steps)


@implements(Constant)
def _constant(train: TrainConfig, done: float) -> float:
    return 1.0


@implements(Linear)
def _linear(train: TrainConfig, done: float) -> float:
    return 1 + (train.final_lr - 1) * done


@implements(Cosine)
def _cosine(train: TrainConfig, done: float) -> float:
    return train.final_lr + (1 - train.final_lr) * (1 + math.cos(math.pi * done)) / 2


@implements(WSD)
def _wsd(train: TrainConfig, done: float) -> float:
    decay = train.decay
    return 1 + (train.final_lr - 1) * max(0.0, (done - (1 - decay)) / decay) if decay else 1.0


def extension_step(train: TrainConfig) -> int:
    """Return the step up to which the learning rate does not depend on the run's length.

    If warmup is given in steps, a longer run can continue from the checkpoint of this step. Return 0 if the rate falls
    throughout the run.
    """
    if not kinds(Schedule)[train.schedule].holds_peak:
        return 0
    after_warmup = range(warmup_steps(train), train.steps)
    n_constant = bisect_left(after_warmup, True, key=lambda step: learning_rate(train, step) != train.lr)
    return after_warmup.start + n_constant


def step_to_extend(run: Path, checkpoints: Path, old: TrainConfig, new: TrainConfig) -> int:
    """Return the step from which the run with the settings `old` can be extended to the longer run with `new`.

    The result is the newest step that has a checkpoint and up to which both runs have the same learning rates. Raise a
    UserError that gives the reason if there is no such step.
    """
    pairs = ((learning_rate(old, step), learning_rate(new, step)) for step in range(old.steps))
    same = next((step for step, (before, now) in enumerate(pairs) if before != now), old.steps)
    newest, damaged = newest_checkpoint(checkpoints, up_to=same)
    while newest and newest[0] > 0 and not has_optimizer(newest[1]):  # imported weights are at step 0
        newest, _ = newest_checkpoint(checkpoints, up_to=newest[0] - 1)
    if newest is not None:
        return newest[0]
    why = "; ".join(damaged) or _why(old, new, same)
    raise UserError(
        f"{run}: the run has {old.trained:,} training tokens and cannot be extended to {new.trained:,}: {why}; "
        "to train from the start, choose another folder"
    )


def _why(old: TrainConfig, new: TrainConfig, same: int) -> str:
    if extension_step(old) == 0:
        difference = f"a longer run has different learning rates from step {same + 1:,} on"
        return (
            f"with train.schedule={old.schedule}, {difference}; "
            "only runs with train.schedule=constant, or with wsd before the decay starts, can be extended"
        )
    if (before := warmup_steps(old)) != (now := warmup_steps(new)):
        began = f"the run began with {before:,} of {old.steps:,}"
        return (
            f"train.warmup={new.warmup} means {now:,} warmup steps of {new.steps:,}, but {began}; "
            f"set train.warmup={before}"
        )
    if same < old.steps:
        return f"the learning rates differ from step {same + 1:,} on, and no earlier checkpoint is left"
    return "no checkpoint with the optimizer state is left"
