"""A run's metrics, copied line by line to the tools that are open for it."""

from collections.abc import Callable, Mapping
from typing import Any

from archlab.training.sinks.sink import Sink, numbers


class Copies:
    """What each tool is told; one that fails is told nothing more, and the training goes on."""

    def __init__(self, sinks: Mapping[str, Sink], on_failure: Callable[[str], None] = lambda _: None) -> None:
        """`sinks` by name; `on_failure` is given a sentence, once for each that fails."""
        self._sinks, self._on_failure = dict(sinks), on_failure

    def begin(self, step: int) -> None:
        """See Sink."""
        self._each(lambda sink: sink.begin(step))

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics: its numbers, without those that are none."""
        measures = dict(numbers({name: value for name, value in line.items() if name != "step"}))
        self._each(lambda sink: sink.log(line["step"], measures))

    def close(self, *, ended: bool) -> None:
        """See Sink."""
        self._each(lambda sink: sink.close(ended=ended))

    def _each(self, tell: Callable[[Sink], None]) -> None:
        for name, sink in [*self._sinks.items()]:
            try:
                tell(sink)
            except Exception as error:
                del self._sinks[name]
                self._on_failure(failure(name, error))


def failure(name: str, error: Exception) -> str:
    """What a user is told of it."""
    why = (str(error).strip().splitlines() or [""])[0]
    return f"train.log: {name} has failed ({type(error).__name__}: {why}); metrics.jsonl has everything"
