"""The learning rate as a pure function of the step."""

import math

from archlab.config.training import ResolvedTrain


def warmup_steps(train: ResolvedTrain) -> int:
    """Warm-up in steps, from steps or a share of the run."""
    return train.warmup if isinstance(train.warmup, int) else round(train.warmup * train.steps)


def learning_rate(train: ResolvedTrain, step: int) -> float:
    """The rate of update `step`, counted from 0: linear warm-up, then the schedule's shape."""
    steps, warmup = train.steps, warmup_steps(train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return train.lr * _shape(train, done)


def _shape(train: ResolvedTrain, done: float) -> float:
    """The rate as a share of its peak, when the share `done` of the steps after the warm-up is done."""
    final = train.final_lr
    match train.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1 + (final - 1) * done
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            decay = train.decay
            return 1 + (final - 1) * max(0.0, (done - (1 - decay)) / decay) if decay else 1.0
