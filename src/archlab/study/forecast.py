"""What a study will take, before it begins; and what each that comes with archlab will."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log2, prod

from archlab.config.core.base import Base
from archlab.config.identity import flatten, resolved
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.infer.speed import rehearse, seconds_of, uncompiled
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import ideal, predicted, untimed
from archlab.pricing.summary import cost
from archlab.pricing.work import computed_training_flops
from archlab.study.arm import Arm
from archlab.study.design import arms, grid
from archlab.study.schema import Budget, StudyConfig, most_seeds
from archlab.study.study_file import AS_IT_STANDS, library_study, scales_of

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


STEPS = 3
"""That are timed, after two that are not."""

_LARGEST = 2e11
"""FLOPs of a step that is tried, a few seconds for all of them."""


def as_rehearsed(config: Config) -> Clock | None:
    """By steps of this config, not compiled, with all of this machine's threads; of others as many FLOPs take as long.
    None where a step is too large to be tried."""
    flops = _flops_of_a_step(config)
    if flops > _LARGEST:
        return None
    per_flop = min(seconds_of(rehearse(uncompiled(config)).step, STEPS)) / flops

    def clock(other: Config) -> float:
        return resolve_train(other).steps * _flops_of_a_step(other) * per_flop

    return clock


def _flops_of_a_step(config: Config) -> float:
    return computed_training_flops(config) * resolve_train(config).batch_tokens


class ListedStudy(Base):
    """One of them."""

    name: str
    question: str
    claim: str | None
    """What is said, and by whom; null where it tests no claim."""
    primary: str | None
    """The outcome that its answer is about; null: the loss, or a task's accuracy."""
    others: list[str]
    """Outcomes that are compared beside."""
    takes: dict[str, Forecast]
    """Scale -> what it takes."""


def listed_studies(names: Iterable[str], clocks: Mapping[str, Clock]) -> Iterator[ListedStudy]:
    """Those of the names, in their order. `clocks`: scale -> how its time is foretold; without one it is not."""
    for name in names:
        study = library_study(name, AS_IT_STANDS)
        yield ListedStudy(
            name=name,
            question=study.question,
            claim=study.claim,
            primary=study.primary,
            others=[name for name in study.measure if name != study.primary],
            takes={scale: _takes(name, scale, clocks.get(scale)) for scale in scales_of(name)},
        )


def bytes_per_token(vocab_size: int) -> float:
    """About how many bytes of Python source a token is: within 4% of what five vocabularies from 512 to 8,192 make of
    it (the results of the study `vocabulary`)."""
    return 2.57 + 0.45 * log2(vocab_size / 1024)


def _takes(name: str, scale: str, clock: Clock | None) -> Forecast:
    study = library_study(name, scale)
    return forecast(study, _unprepared(study), clock)


def _unprepared(study: StudyConfig) -> list[Arm]:
    """Its arms; where the budget is in bytes, with about as many tokens as they are."""
    if (n_bytes := study.budget.bytes) is None:
        return arms(study)
    designed = arms(study.model_copy(update={"budget": Budget(tokens=n_bytes)}))
    return [arm.training(round(n_bytes / bytes_per_token(arm.config.model.vocab_size))) for arm in designed]
