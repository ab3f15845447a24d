"""Estimates of a study's runs, FLOPs and time before the study starts. Also estimates for the studies that come with
archlab."""

from collections.abc import Callable, Sequence
from math import ceil, log2, prod

from archlab.config.core.base import Base
from archlab.config.identity import flatten, resolved
from archlab.config.layers import stacks
from archlab.config.schema import Config, TrainConfig
from archlab.config.training import resolve_train, without_teacher
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import ideal, predicted, untimed
from archlab.pricing.summary import cost
from archlab.pricing.work import computed_training_flops
from archlab.study.arm import Arm
from archlab.study.design import grid
from archlab.study.schema import StudyConfig, most_seeds
from archlab.study.shared_start import start_config

Clock = Callable[[Config], float | None]
"""Function that returns the estimated training time of a config in seconds, or None if there is no estimate."""


class Forecast(Base):
    """Estimate for all runs of a study, including tuning and the largest number of seeds that a rule may add."""

    runs: int
    flops: float
    """Training FLOPs of all runs, without evaluation. They include masked query-key pairs that the kernel computes."""
    seconds: float | None
    """Time to train and evaluate all runs, in seconds; null if it cannot be estimated."""


def measured_clock(machine: Hardware) -> Clock:
    """Return a clock for a machine that `archlab hardware --measure` has measured.

    The clock assumes that training uses all threads and is not compiled. If the dtype is auto, it assumes the faster
    dtype.
    """

    def clock(config: Config) -> float | None:
        train = resolve_train(config)
        formats: list[Format] = ["float32", "bfloat16"] if train.dtype == "auto" else [train.dtype]
        times = list[float]()
        for number_format in formats:
            rates = machine.rates("training", number_format)
            work = cost(config, dtype=number_format).computed_work["training"]
            if rates and not untimed(work, rates):
                times.append(train.steps * predicted(work, rates, train.batch_tokens).seconds)
        return min(times, default=None)

    return clock


_SECONDS_PER_LAYER = 1e-3
"""Least time for an update of one layer on a core, in seconds. In tiny models, starting an operation takes longer than
computing it: models of 1 to 8 layers and 16 features took 3.2 to 11.7 ms per update of 64 tokens."""


def pace_clock(flops_per_second: float) -> Clock:
    """Return a clock that divides a config's training FLOPs by a speed. The speed was measured with another model.

    The clock does not go below the least time per update.
    """

    def clock(config: Config) -> float:
        train = resolve_train(config)
        n_layers = sum(stack.n_layers for stack in stacks(config.model)) + 2  # embedding and head
        passes = train.steps * ceil(train.batch_tokens / train.micro_batch_tokens)
        return max(
            train.trained * computed_training_flops(config) / flops_per_second, passes * n_layers * _SECONDS_PER_LAYER
        )

    return clock


def ideal_clock(device: Hardware) -> Clock:
    """Return a clock for a device that reaches the limits on its data sheet. Real training is slower."""

    def clock(config: Config) -> float:
        train = resolve_train(config)
        number_format: Format = "bfloat16" if train.dtype == "auto" else train.dtype
        work = cost(config, dtype=number_format).computed_work["training"]
        return train.steps * ideal(work, device, number_format, train.batch_tokens).seconds

    return clock


def with_evaluation(train: TrainConfig, seconds: float) -> float:
    """Return the time in seconds to train and evaluate a run, from the time to train it.

    An evaluation is a forward pass, which takes about a third of the time of an update. `train` is resolved.
    """
    n_evaluations = 1 + ceil(train.steps / train.eval_every)  # the first one is before training
    return seconds * (1 + n_evaluations * train.eval_tokens / 3 / train.trained)


def forecast(study: StudyConfig, arms: Sequence[Arm], clock: Clock | None) -> Forecast:
    """Estimate the runs and FLOPs of a study. If there is a clock, also estimate the time."""
    for arm in arms:
        without_teacher(arm.config, "estimated FLOPs and time")
    runs = [_runs(study, arm) for arm in arms]
    tokens = [resolve_train(arm.config).trained for arm in arms]
    flops = [computed_training_flops(arm.config) for arm in arms]
    times = [_time(arm.config, clock) for arm in arms]
    if start := start_config(study):
        runs, tokens = [1, *runs], [resolve_train(start).trained, *tokens]
        flops, times = [computed_training_flops(start), *flops], [_time(start, clock), *times]
    return Forecast(
        runs=sum(runs),
        flops=sum(prod(factors) for factors in zip(runs, tokens, flops, strict=True)),
        seconds=None if None in times else sum(n * (time or 0.0) for n, time in zip(runs, times, strict=True)),
    )


def _time(config: Config, clock: Clock | None) -> float | None:
    seconds = clock(config) if clock else None
    return None if seconds is None else with_evaluation(resolve_train(config), seconds)


def _runs(study: StudyConfig, arm: Arm) -> int:
    """Count the runs of an arm: tuning runs, one run per seed in the comparison, and sweep runs. A sweep run that the
    comparison already includes is counted once."""
    own = flatten(resolved(arm.config))
    at_once = max(len({own[field], *values}) for field, values in study.sweep.items()) if study.sweep else 1
    is_largest = not study.has_run(arm.size, study.seed_list[-1])
    n_seeds = study.largest_seeds if is_largest and study.largest_seeds else most_seeds(study.seeds)
    return n_seeds * at_once + len(grid(study)) * study.tune_seeds


BYTES_PER_TOKEN = 2.57
"""Mean number of bytes of Python source that a token of a vocabulary of 1,024 covers."""
BYTES_PER_DOUBLING = 0.45
"""Further bytes per token with each doubling of the vocabulary."""


def bytes_per_token(vocab_size: int) -> float:
    """Estimate how many bytes of Python source a token covers on average.

    The estimate is within 4% of the measured values for five vocabularies of 512 to 8,192 tokens (results of the study
    `vocabulary`).
    """
    return BYTES_PER_TOKEN + BYTES_PER_DOUBLING * log2(vocab_size / 1024)
