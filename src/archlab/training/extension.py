"""Making a run longer, exactly as if its length had been asked for from the start."""

from pathlib import Path

from archlab.config.schema import TrainConfig
from archlab.errors import UserError
from archlab.training.checkpoint import has_optimizer, newest_checkpoint
from archlab.training.step import extension_step, learning_rate, warmup_steps

LENGTH = {"tokens", "warmup", "schedule", "decay", "final_lr"}
"""Fields of the train section that decide nothing but the number of steps and the learning rate of each."""


def step_to_extend(run: Path, checkpoints: Path, old: TrainConfig, new: TrainConfig) -> int:
    """Step of the newest checkpoint of `old` that a run of `new`, which is longer, would have made too.

    Raise UserError with the reason if there is none: from some step on, the two have different learning rates.
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
        f"{run}: has {old.trained:,} training tokens and cannot be extended to {new.trained:,}: {why}; "
        "or begin a new run in another folder"
    )


def _why(old: TrainConfig, new: TrainConfig, same: int) -> str:
    if extension_step(old) == 0:
        other = f"a longer run has other learning rates from step {same + 1:,} on"
        return (
            f"with train.schedule={old.schedule} {other}; allowed: runs of schedule constant, or wsd before its decay"
        )
    if (before := warmup_steps(old)) != (now := warmup_steps(new)):
        steps = f"{before:,} steps of {old.steps:,}, but {now:,} of {new.steps:,}"
        return f"train.warmup={new.warmup} is {steps}; set train.warmup={before}"
    if same < old.steps:
        return f"the learning rates differ from step {same + 1:,} on, and no checkpoint from before it is left"
    return "no checkpoint with the optimizer's state is left"
