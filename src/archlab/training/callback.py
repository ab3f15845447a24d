"""Base class of the callbacks that training calls, and the callback that prints progress."""

from dataclasses import dataclass, replace
from typing import Self

from archlab.pricing.units import si
from archlab.progress import Bar
from archlab.training.evaluate import Score
from archlab.training.utilization import mfu_text


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one training step."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    mfu: float | None
    """Model FLOPs utilization; None if the peak of the machine is unknown."""
    score: Score | None
    """Score of the evaluation after this step; None if there was no evaluation."""

    @property
    def details(self) -> list[str]:
        """Return all metrics except the step number, as short strings."""
        held_out = [] if self.score is None else [str(self.score)]
        return [f"loss {self.loss:.3f}", *held_out, f"{si(self.tokens_per_second)} tok/s", mfu_text(self.mfu)]


class Callback:
    """Base class of callbacks. Training calls its methods, which do nothing unless a subclass overrides them.

    A callback is also a context manager. Training enters it before the first step and leaves it after the last one.

    >>> class Losses(archlab.Callback):
    ...     def on_step(self, metrics):
    ...         print(metrics.step, f"{metrics.loss:.3f}")
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_note(self, text: str) -> None:
        """Receive a note for the user."""

    def on_weights(self, source: str) -> None:
        """Receive a description of where the model's weights come from. Called once, before the first step."""

    def on_data(self, description: str) -> None:
        """Receive a description of the text or task that the run reads."""

    def on_step(self, metrics: StepMetrics) -> None:
        """Receive the metrics of a finished step."""


class Printing(Callback):
    """Callback that prints the source of the weights, the data, notes and progress to stderr.

    In a terminal, progress is shown as a bar. The source of the weights is always printed first: notes and
    descriptions of the data wait until `on_weights` is called.
    """

    def __init__(self) -> None:
        self._bar = Bar()
        self._bar.begin("training")
        self._waiting: list[str] | None = []
        self._score: Score | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def on_weights(self, source: str) -> None:
        self._bar.print(f"weights: {source}")
        waiting, self._waiting = self._waiting or [], None
        for line in waiting:
            self._bar.print(line)

    def on_data(self, description: str) -> None:
        self._after_weights(f"data: {description}")

    def on_note(self, text: str) -> None:
        self._after_weights(f"note: {text}")

    def _after_weights(self, line: str) -> None:
        if self._waiting is None:
            self._bar.print(line)
        else:
            self._waiting.append(line)

    def on_step(self, metrics: StepMetrics) -> None:
        """Update the bar, which keeps showing the last score. Outside a terminal, print one line per evaluation."""
        self._score = metrics.score or self._score
        shown = replace(metrics, score=self._score) if self._bar.is_drawn else metrics
        position = f"{metrics.step:,}/{metrics.steps:,}"
        self._bar.update(metrics.step / metrics.steps, position, *shown.details, line=metrics.score is not None)
