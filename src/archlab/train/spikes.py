"""Finding updates whose loss or gradient is far above those before them, and what of it is in the log."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from archlab.config.schema import Spikes

SPIKE, SKIPPED, REWOUND, PASSED_OVER = "spike", "skipped", "rewound_from", "batches_passed_over"
"""Fields of a line of metrics: how many deviations above the usual; that no update was made; the step from which the
training went back to this one; and how many batches it does not read again."""


class SpikeWatch:
    """The losses and gradient norms of the last updates, in both of which a spike is looked for."""

    def __init__(self, config: Spikes, metrics: Sequence[Mapping[str, Any]]) -> None:
        """`metrics` of the run so far, so that a run that goes on sees what an uninterrupted one would see."""
        self._config = config
        self._losses, self._norms = (deque[float](maxlen=config.window) for _ in range(2))
        for line in metrics:
            if "lr" in line and SPIKE not in line:
                self.add(line["loss"], line["grad_norm"])

    def add(self, loss: float, grad_norm: float) -> None:
        """An update without a spike was made."""
        self._losses.append(loss)
        self._norms.append(grad_norm)

    def found(self, loss: float, grad_norm: float) -> float | None:
        """Deviations above the mean of the window, of the loss or of the gradient, what is more; None for fewer than
        the config asks for, and as long as the window is not full."""
        if len(self._losses) < self._config.window:
            return None
        most = max(_above(loss, self._losses), _above(grad_norm, self._norms))
        return most if most >= self._config.deviations else None


def _above(value: float, usual: Sequence[float]) -> float:
    mean, deviation = statistics.fmean(usual), statistics.stdev(usual)
    return (value - mean) / deviation if deviation else 0.0


def n_spikes(metrics: Sequence[Mapping[str, Any]]) -> int:
    """How many are in the log; after going back, those before the way back count too."""
    return sum(SPIKE in line for line in metrics)


def batches_passed_over(metrics: Sequence[Mapping[str, Any]]) -> int:
    """By all ways back so far: a step reads the batch of so many steps later."""
    return sum(line.get(PASSED_OVER, 0) for line in metrics)
