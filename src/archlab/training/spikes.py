"""Detection of spikes: steps whose loss or gradient norm is far above those of previous steps."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archlab.config.schema import Spikes

SPIKE, SKIPPED, REWOUND, PASSED_OVER = "spike", "skipped", "rewound_from", "batches_passed_over"
"""Fields of metrics.jsonl that describe spikes.

SPIKE is the number of standard deviations above the mean. SKIPPED says whether the update was skipped. REWOUND is the
step from which training went back to this step. PASSED_OVER is the number of batches that are not read again.
"""

MOST_REWINDS = 5
"""Maximum number of times that a run goes back to one checkpoint.

If the run still spikes after that, the text is not the cause.
"""


class SpikeWatch:
    """Losses and gradient norms of the last steps, with which a new step is compared."""

    def __init__(self, config: Spikes, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Read `metrics` of the run so far, so that a resumed run detects the same spikes as an uninterrupted one."""
        self._config = config
        self._losses, self._norms = (deque[float](maxlen=config.window) for _ in range(2))
        for line in metrics:
            if "grad_norm" in line and "diverged" not in line:
                self._add(line["loss"], line["grad_norm"])

    def add(self, loss: float, grad_norm: float) -> float | None:
        """Add a step to the window. If the step is a spike, return its number of standard deviations above the mean.

        The number is computed for the loss and for the gradient norm, relative to the window before the step. The
        larger one is returned. Return None if the step is not a spike, or if the window is not full yet.
        """
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
    """Return n, the number of batches that all rewinds so far have skipped. From now on, step i reads batch i + n."""
    return sum(line.get(PASSED_OVER, 0) for line in metrics)


def rewinds_to(step: int, metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in metrics if REWOUND in line and line["step"] == step]
