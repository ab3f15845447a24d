"""What a training's metrics can be copied to beside its folder, while it goes on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from archlab.files import real_path

Measures = Mapping[str, float]


class Sink(Protocol):
    """A tool that draws metrics, open for one run. Whatever it raises ends the copying, not the training."""

    def begin(self, step: int) -> None:
        """The training goes on with this step: 0 at its start, another where it goes on or back. What was logged of it
        and of steps after it will be logged again."""
        ...

    def log(self, step: int, measures: Measures) -> None:
        """What was measured at a step; of one step there may be several."""
        ...

    def close(self, *, ended: bool) -> None:
        """Nothing more comes now. `ended`: the training is over, and was not stopped."""
        ...


@dataclass(frozen=True)
class LoggedRun:
    """What a tool is told of a run when it is opened."""

    folder: Path
    id: str
    """The same whenever the run goes on, and no other run's."""
    values: Mapping[str, Any]
    """Its config, with every derived value written out, and its environment."""

    @property
    def name(self) -> str:
        """For people: that of its folder, and so much of its id that two of one name are told apart."""
        return f"{real_path(self.folder).name}-{self.id[:4]}"


PROJECT = "archlab"
"""What tools call the project where their own environment variables do not say it."""


def numbers(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, float]]:
    """Names and numbers of a line of metrics. A probe is an object, with lists of one number per layer:
    `probes/entropy/3` is that of the third layer."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{at}{name}/")
        elif isinstance(value, list):
            yield from numbers({str(i): x for i, x in enumerate(value, 1)}, f"{at}{name}/")
        elif isinstance(value, int | float):
            yield f"{at}{name}", float(value)
