"""How long trainings take by a few steps of one of them, where the machine was not measured."""

from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.infer.speed import rehearse, seconds_of, uncompiled
from archlab.pricing.work import computed_training_flops
from archlab.study.forecast import Clock

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
