"""The studies that come with archlab, with what each will take, before any text is prepared."""

from collections.abc import Iterable, Iterator, Mapping
from math import log2

from archlab.config.core.base import Base
from archlab.study.design import Arm, arms
from archlab.study.forecast import Clock, Forecast, forecast
from archlab.study.scales import AS_IT_STANDS, library_study, scales_of
from archlab.study.schema import Budget, StudyConfig


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
    takes: dict[str, Forecast]
    """Scale -> what it takes."""


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


def bytes_per_token(vocab_size: int) -> float:
    """About how many bytes of Python source a token is: within 4% of what five vocabularies from 512 to 8,192 make of
    it (the results of the study `vocabulary`)."""
    return 2.57 + 0.45 * log2(vocab_size / 1024)


def _takes(name: str, scale: str, clock: Clock | None) -> Forecast:
    study = library_study(name, scale)
    return forecast(study, _unprepared(study), clock)


def _unprepared(study: StudyConfig) -> list[Arm]:
    """Its arms; where the budget is in bytes, with about as many tokens as they are."""
    if (n_bytes := study.budget.bytes) is None:
        return arms(study)
    designed = arms(study.model_copy(update={"budget": Budget(tokens=n_bytes)}))
    return [arm.training(round(n_bytes / bytes_per_token(arm.config.model.vocab_size))) for arm in designed]
