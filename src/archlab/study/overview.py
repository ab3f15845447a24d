"""The studies that come with archlab, with what each will take, before any text is prepared."""

from collections.abc import Iterable, Iterator, Mapping

from archlab.config.base import Base
from archlab.study.design import arms
from archlab.study.forecast import Clock, Forecast, forecast
from archlab.study.scales import AS_IT_STANDS, library_study, scales_of


class Listed(Base):
    """One of them."""

    name: str
    question: str
    claim: str | None
    """What is said, and by whom; null where it tests no claim."""
    primary: str | None
    """The outcome that its answer is about; null: the loss, or a task's accuracy."""
    others: list[str]
    """Outcomes that are compared beside."""
    takes: dict[str, Forecast | None]
    """Scale -> what it takes; null where only the prepared text tells how many tokens its bytes are."""


def listed_studies(names: Iterable[str], clocks: Mapping[str, Clock]) -> Iterator[Listed]:
    """Those of the names, in their order. `clocks`: scale -> how its time is foretold; without one it is not."""
    for name in names:
        study = library_study(name, AS_IT_STANDS)
        yield Listed(
            name=name,
            question=study.question,
            claim=study.claim,
            primary=study.primary,
            others=[name for name in study.measure if name != study.primary],
            takes={scale: _takes(name, scale, clocks.get(scale)) for scale in scales_of(name)},
        )


def _takes(name: str, scale: str, clock: Clock | None) -> Forecast | None:
    study = library_study(name, scale)
    return None if study.budget.bytes is not None else forecast(study, arms(study), clock)
