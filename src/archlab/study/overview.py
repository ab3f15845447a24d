"""The studies that come with archlab, with what each will take, before any text is prepared."""

from collections.abc import Iterator

from archlab.config.base import Base
from archlab.config.io import studies
from archlab.cost.hardware import Hardware
from archlab.study.design import arms
from archlab.study.forecast import Forecast, forecast
from archlab.study.scales import AS_IT_STANDS, library_study, scales_of


class Listed(Base):
    """One of them."""

    name: str
    question: str
    takes: dict[str, Forecast | None]
    """Scale -> what it takes; null where only the prepared text tells how many tokens its bytes are. Times are of this
    machine, and of the scales for a CPU alone."""


def listed_studies(this: Hardware | None) -> Iterator[Listed]:
    """By name. `this`: the machine as `archlab hardware --measure` found it; None where it has not."""
    for name in studies():
        question = library_study(name, AS_IT_STANDS).question
        yield Listed(
            name=name, question=question, takes={scale: _takes(name, scale, this) for scale in scales_of(name)}
        )


def _takes(name: str, scale: str, this: Hardware | None) -> Forecast | None:
    study = library_study(name, scale)
    if study.budget.bytes is not None:
        return None
    return forecast(study, arms(study), None if scale == "gpu" else this)
