"""The learning rate as a pure function of the step."""

import math

from archlab.config.schema import TrainConfig


def n_steps(train: TrainConfig) -> int:
    """Optimiser updates in the whole run."""
    return train.tokens // train.batch_tokens


def warmup_steps(train: TrainConfig) -> int:
    """Warm-up in steps, from steps or a share of the run."""
    return train.warmup if isinstance(train.warmup, int) else round(train.warmup * n_steps(train))


def learning_rate(train: TrainConfig, step: int) -> float:
    """The rate of update `step`, counted from 0: linear warm-up, then the schedule's shape."""
    steps, warmup = n_steps(train), warmup_steps(train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return train.lr * _shape(train, done)


def _shape(train: TrainConfig, done: float) -> float:
    """Part of the peak when the share `done` of the steps after the warm-up lies behind."""
    final = 0.1 if train.final_lr is None else train.final_lr
    match train.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1 + (final - 1) * done
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            decay = 0.2 if train.decay is None else train.decay
            return 1 + (final - 1) * max(0.0, (done - (1 - decay)) / decay) if decay else 1.0
