"""Speed at which a study is expected to train: that of this machine if it was measured, and otherwise that of the
committed results."""

from statistics import fmean
from typing import NamedTuple

from archlab.config.core.base import Base
from archlab.evidence.results import committed, results_name
from archlab.pricing.hardware import THIS, load_hardware, this_machine
from archlab.pricing.work import computed_training_flops
from archlab.study.design import arms
from archlab.study.forecast import Clock, measured_clock, pace_clock
from archlab.study.study_file import AS_IT_STANDS, library_study

_STUDY, _ARM = "norm-kind", "rms"
"""Names of a study with timed runs and of one of its arms. The arm trains the unchanged preset mini-llama, on which
most studies are based."""


class Pace(Base):
    """Training speed of the machine on which the committed results were measured."""

    flops_per_second: float
    """Training FLOPs per second. The FLOPs are computed by archlab."""
    tokens_per_second: float
    """Training tokens per second of mini-llama."""
    processor: str


def committed_pace() -> Pace | None:
    """Return the training speed in the committed results. Return None if they do not contain the study with timed
    runs."""
    results = committed().get(results_name(_STUDY, AS_IT_STANDS))
    if results is None:
        return None
    (arm,) = (arm for arm in arms(library_study(_STUDY, AS_IT_STANDS)) if arm.name == _ARM)
    speed = fmean(value for value in results.values["training_speed"][_ARM].values() if value is not None)
    return Pace(
        flops_per_second=speed * computed_training_flops(arm.config),
        tokens_per_second=speed,
        processor=results.about.environment["processor"],
    )


class TrainingPace(NamedTuple):
    """Clock for the training time of configs, and the machine on which it is based."""

    clock: Clock | None
    """None if no speed is known."""
    committed: Pace | None
    """Speed of the committed results. None if the clock is that of this machine, or if no speed is known."""

    @property
    def source(self) -> str:
        """Machine on which the clock is based, in words that follow a time."""
        if self.committed:
            machine = f"on two cores of {self.committed.processor}"
            return f"{machine}, where archlab's own studies ran; `archlab hardware --measure` measures this machine"
        return "on this machine, as `archlab hardware --measure` measured it"


def training_pace() -> TrainingPace:
    """Return the pace from which all estimates of a study's time are made. Measurements of this machine come first."""
    if this_machine().exists():
        return TrainingPace(measured_clock(load_hardware(THIS)), None)
    pace = committed_pace()
    return TrainingPace(pace and pace_clock(pace.flops_per_second), pace)
