"""Finding updates whose loss or gradient is far above those before them, and what of it is in the log."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archlab.config.schema import Spikes

SPIKE, SKIPPED, REWOUND, PASSED_OVER = "spike", "skipped", "rewound_from", "batches_passed_over"
"""Fields of a line of metrics: how many deviations above the usual; that no update was made; the step at which the
training went back to this one; and how many batches it does not read again."""

MOST_REWINDS = 5
"""To one checkpoint: where the text after it spikes as often, it is not the text."""


class SpikeWatch:
    """The losses and gradient norms of the last steps, against which a spike is found."""

    def __init__(self, config: Spikes, metrics: Sequence[Mapping[str, Any]]) -> None:
        """`metrics` of the run so far, so that a run that goes on finds what an uninterrupted one would find."""
        self._config = config
        self._losses, self._norms = (deque[float](maxlen=config.window) for _ in range(2))
        for line in metrics:
            if "grad_norm" in line and "diverged" not in line:
                self._add(line["loss"], line["grad_norm"])

    def found(self, loss: float, grad_norm: float) -> float | None:
        """Deviations of a step above the mean of the window before it, of the loss or the gradient, what is more; None
        where that is no spike, and as long as the window is not full. The step is in the window from now on."""
        full = len(self._losses) == self._config.window
        most = max(_above(loss, self._losses), _above(grad_norm, self._norms)) if full else 0.0
        self._add(loss, grad_norm)
        return most if most >= self._config.deviations else None

    def _add(self, loss: float, grad_norm: float) -> None:
        self._losses.append(loss)
        self._norms.append(grad_norm)


def _above(value: float, usual: Sequence[float]) -> float:
    deviation = float(np.std(usual, ddof=1))
    return (value - float(np.mean(usual))) / deviation if deviation else 0.0


def batches_passed_over(metrics: Sequence[Mapping[str, Any]]) -> int:
    """By all ways back so far: a step reads the batch of so many steps later."""
    return sum(line.get(PASSED_OVER, 0) for line in metrics)


def rewinds_to(step: int, metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines that say that the training went back to that step."""
    return [line for line in metrics if REWOUND in line and line["step"] == step]
