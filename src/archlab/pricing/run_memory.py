"""Memory that a training run needs on its host."""

from archlab.config.schema import Config
from archlab.pricing.memory import Format, training_memory_of
from archlab.pricing.summary import step_memory_of

_PROCESS_BYTES = {"cpu": 2**30, "cuda": 4 * 2**30}
"""Bytes of host memory that a run needs in addition to its model, by device: for Python, torch and the windows of
text."""

_STEP_MARGIN = 1.25
"""Factor by which the step memory from `archlab cost` is multiplied, to allow for evaluations and fragmented memory."""


def host_memory(config: Config, device: str, dtype: Format) -> int:
    """Return the bytes of host memory that a run needs. If it trains on a GPU, the host only holds a copy of the state
    for the checkpoint."""
    training = training_memory_of(config)
    base = _PROCESS_BYTES[device] + training.weights + training.optimizer
    if device != "cpu":
        return base
    return base + round(_STEP_MARGIN * step_memory_of(config, dtype).peak_of(recompute=config.train.recompute))
