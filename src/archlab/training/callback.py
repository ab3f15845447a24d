"""What a person sees while a model trains."""

from dataclasses import dataclass, replace
from typing import Self

from archlab.pricing.units import si
from archlab.progress import Bar
from archlab.training.evaluate import Score


@dataclass(frozen=True)
class StepMetrics:
    """The state of a run after one step."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    mfu: float
    score: Score | None
    """Of the evaluation after this step, if there was one."""

    @property
    def details(self) -> list[str]:
        """Everything but the step, in words."""
        held_out = [] if self.score is None else [str(self.score)]
        return [f"loss {self.loss:.3f}", *held_out, f"{si(self.tokens_per_second)} tok/s", f"MFU {self.mfu:.0%}"]


class Callback:
    """Methods that a training calls while it runs; a context that lasts as long as its steps. This one does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_note(self, text: str) -> None:
        """There is something that the user should know."""

    def on_weights(self, source: str) -> None:
        """The model has the weights that `source` names; called once, before the first step."""

    def on_data(self, description: str) -> None:
        """The training reads the text, or the task, that `description` names."""

    def on_step(self, metrics: StepMetrics) -> None:
        """One step is done."""


class Printing(Callback):
    """Prints to stderr where the weights come from, what is read, the notes, and the progress: a bar in a terminal.

    Lines that come before `on_weights` are printed after it.
    """

    def __init__(self) -> None:
        self._bar = Bar()
        self._bar.begin("training")
        self._waiting: list[str] | None = []
        """Lines that came before the weights were known. None: they are known."""
        self._score: Score | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def on_weights(self, source: str) -> None:
        """Print it, then the lines so far."""
        self._bar.print(f"weights: {source}")
        waiting, self._waiting = self._waiting or [], None
        for line in waiting:
            self._bar.print(line)

    def on_data(self, description: str) -> None:
        """Print it after the weights."""
        self._after_weights(f"data: {description}")

    def on_note(self, text: str) -> None:
        """Print it after the weights."""
        self._after_weights(f"note: {text}")

    def _after_weights(self, line: str) -> None:
        if self._waiting is None:
            self._bar.print(line)
        else:
            self._waiting.append(line)

    def on_step(self, metrics: StepMetrics) -> None:
        """Move the bar, on which the last evaluation stays; elsewhere print a line of every evaluation."""
        self._score = metrics.score or self._score
        shown = replace(metrics, score=self._score) if self._bar.in_terminal else metrics
        how_far = f"{metrics.step:,}/{metrics.steps:,}"
        self._bar.update(metrics.step / metrics.steps, how_far, *shown.details, line=metrics.score is not None)
