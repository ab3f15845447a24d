"""What a study will take, before it begins."""

from collections.abc import Callable, Sequence
from math import prod

from archlab.config.core.base import Base
from archlab.config.identity import flatten, resolved
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import ideal, predicted, untimed
from archlab.pricing.summary import cost
from archlab.pricing.work import computed_training_flops
from archlab.study.design import Arm, grid
from archlab.study.schema import StudyConfig, most_seeds

Clock = Callable[[Config], float | None]
"""Seconds of the training of one run; None where they cannot be foretold."""


class Forecast(Base):
    """Of all runs, those of tuning and all that a rule may add too."""

    runs: int
    flops: float
    """Of training, hidden pairs that are computed included; evaluation comes on top."""
    seconds: float | None
    """Of training; null where no time can be foretold."""


def as_timed(this: Hardware) -> Clock:
    """On the machine as `archlab hardware --measure` found it, with all of its threads, nothing compiled; where the
    number format is chosen by speed, in the faster one."""

    def clock(config: Config) -> float | None:
        train = resolve_train(config)
        formats: list[Format] = ["float32", "bfloat16"] if train.dtype == "auto" else [train.dtype]
        found = list[float]()
        for number_format in formats:
            rates = this.rates("training", number_format)
            work = cost(config, dtype=number_format).computed_work["training"]
            if rates and not untimed(work, rates):
                found.append(train.steps * predicted(work, rates, train.batch_tokens).seconds)
        return min(found, default=None)

    return clock


def at_pace(flops_per_second: float) -> Clock:
    """On a machine of which is known how many FLOPs of training it did in a second, of another model."""

    def clock(config: Config) -> float:
        return resolve_train(config).trained * computed_training_flops(config) / flops_per_second

    return clock


def at_best(device: Hardware) -> Clock:
    """At the limits of a device that is known from its data sheet alone: no training is as fast."""

    def clock(config: Config) -> float:
        train = resolve_train(config)
        number_format: Format = "bfloat16" if train.dtype == "auto" else train.dtype
        work = cost(config, dtype=number_format).computed_work["training"]
        return train.steps * ideal(work, device, number_format, train.batch_tokens).seconds

    return clock


def forecast(study: StudyConfig, arms: Sequence[Arm], clock: Clock | None) -> Forecast:
    """`clock` None: without a time."""
    runs = [_runs(study, arm) for arm in arms]
    tokens = [resolve_train(arm.config).trained for arm in arms]
    flops = [computed_training_flops(arm.config) for arm in arms]
    times = [clock(arm.config) if clock else None for arm in arms]
    return Forecast(
        runs=sum(runs),
        flops=sum(prod(one) for one in zip(runs, tokens, flops, strict=True)),
        seconds=None if None in times else sum(n * (time or 0.0) for n, time in zip(runs, times, strict=True)),
    )


def _runs(study: StudyConfig, arm: Arm) -> int:
    """Those of tuning; and for each seed the one that is compared and those of the sweep, of which it may be one."""
    own = flatten(resolved(arm.config))
    at_once = max(len({own[field], *values}) for field, values in study.sweep.items()) if study.sweep else 1
    return most_seeds(study.seeds) * at_once + len(grid(study)) * study.tune_seeds
