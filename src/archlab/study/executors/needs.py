"""What a run needs of a machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from archlab.config.schema import Config
from archlab.cores import cores
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.pricing.summary import step_memory_of
from archlab.pricing.units import binary
from archlab.study.formatting import plural
from archlab.study.runs import Run
from archlab.training.device import planned_device

SIDE_BY_SIDE_BELOW = 20_000_000
"""Parameters up to which several one-thread processes train more tokens per second than one process with
all threads (measured at 1.3M: benchmarks/side_by_side.py)."""

MOST_BESIDE_A_GPU = 8
"""Threads of a run whose products a GPU computes: more only wait."""

_PROCESS = {"cpu": 2**30, "cuda": 4 * 2**30}
"""Bytes that Python and torch take of the machine's memory without a model, by kind of device, and a text's windows."""

_MARGIN = 1.25
"""To what `archlab cost` counts of a step, for evaluations and for memory in pieces."""


@dataclass(frozen=True)
class Needs:
    """Of one run."""

    cores: int
    gpus: int
    memory: int
    """Bytes of the machine's memory, not of the GPU's."""

    def __str__(self) -> str:
        gpus = f", {plural(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{plural(self.cores, 'core')}{gpus} and {binary(self.memory)} of memory"


def needs(configs: Sequence[Config], threads: int) -> Needs:
    """Enough for a run of each, with so many threads; they are of one study."""
    on = planned_device(configs[0].train).type
    return Needs(threads, int(on == "cuda"), max(map(_memory, configs)))


def needs_of(runs: Sequence[Run]) -> Needs:
    """Enough for each of the runs; those of an arm differ in what costs nothing, such as their seeds."""
    unseeded = (run.config.train.model_copy(update={"seed": 0}) for run in runs)
    by_shape = {str((run.config.model, train)): run.config for run, train in zip(runs, unseeded, strict=True)}
    return needs(list(by_shape.values()), max(run.threads for run in runs))


def _memory(config: Config) -> int:
    """On a GPU the machine holds the copy alone of which a checkpoint is written."""
    device = planned_device(config.train)
    held = training_memory(parameters(config.model), config.train.optimizer)
    copied = held.weights + held.optimizer
    beside = _PROCESS[device.type] + copied
    if device.type != "cpu":
        return beside
    step = step_memory_of(config, device.format).peak_of(recompute=config.train.recompute)
    return beside + round(_MARGIN * step)


def usual_threads(configs: Sequence[Config]) -> int:
    """Of each run of a study: one where small models train side by side on a CPU, else all that it can use."""
    if planned_device(configs[0].train).type == "cuda":
        return max(1, min(MOST_BESIDE_A_GPU, cores() // max(1, torch.cuda.device_count())))
    small = all(parameters(config.model).total < SIDE_BY_SIDE_BELOW for config in configs)
    return 1 if small else cores()
