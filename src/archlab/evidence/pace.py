"""How fast the machine trained on which committed results were made, for times that are foretold without measuring."""

from statistics import fmean

from archlab.config.core.base import Base
from archlab.evidence.results import committed, results_name
from archlab.pricing.work import computed_training_flops
from archlab.study.design import arms
from archlab.study.scales import AS_IT_STANDS, library_study

_STUDY, _ARM = "norm-kind", "rms"
"""Its runs are timed, and this arm is mini-llama as it is, the base of most studies."""


class Pace(Base):
    """Of a machine."""

    flops_per_second: float
    """Of training, as computed."""
    tokens_per_second: float
    """Of that model."""
    processor: str


def committed_pace() -> Pace | None:
    """None where no such results are committed."""
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
