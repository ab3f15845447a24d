"""Studies that come with archlab."""

from collections.abc import Iterator, Mapping
from math import inf

from archlab.code import HOME
from archlab.config.core.base import Base
from archlab.config.io import studies
from archlab.data.file_cache import cached
from archlab.displayed import Displayed
from archlab.evidence.claims import claim_of
from archlab.evidence.pace import training_pace
from archlab.pricing.hardware import load_hardware, this_machine
from archlab.study.arm import Arm
from archlab.study.design import arms
from archlab.study.forecast import Clock, Forecast, bytes_per_token, forecast, ideal_clock
from archlab.study.schema import Budget, StudyConfig
from archlab.study.study_file import AS_IT_STANDS, QUICKEST, library_study, scales_of


class ListedStudy(Base):
    """A study that comes with archlab, with an estimate for each scale."""

    name: str
    question: str
    claim: str | None
    """The common opinion that the study tests, with its source; null if the study tests no claim."""
    primary: str | None
    """Name of the outcome that the answer is about. null: the held-out loss, or a task's accuracy."""
    others: list[str]
    """Names of all additional outcomes except the primary one."""
    takes: dict[str, Forecast]
    """Estimated runs, FLOPs and time, by scale."""
    claims: list[int]
    """Numbers of the claims in the ledger that the study tests."""


class Studies(Displayed, list[ListedStudy]):
    """Studies that come with archlab."""


def list_studies() -> Studies:
    """Return the studies that come with archlab: question, claims, and what the runs take at each scale.

    They are sorted by the number of the first claim in the ledger that they test. Times are in seconds of training. At
    `smoke` and `cpu`, they are those of this machine if it has been measured, and otherwise those of two cores of the
    machine on which archlab's own studies ran. At `gpu`, they assume the limits of one H100, which no training reaches.

    >>> archlab.list_studies()[0].name
    'norm-placement'
    """
    # the forecasts design all arms of all studies, which takes ten seconds
    files = [path for path in HOME.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files += [this_machine()] if this_machine().exists() else []
    raw = cached(["studies", str(HOME)], files, lambda: [study.model_dump(mode="json") for study in _computed()])
    return Studies(map(ListedStudy.model_validate, raw))


def _computed() -> Iterator[ListedStudy]:
    pace = training_pace()
    here = dict.fromkeys((QUICKEST, AS_IT_STANDS), pace.clock) if pace.clock else {}
    claims = {name: [claim.number for claim in claim_of(name)] for name in studies()}
    in_order = sorted(claims, key=lambda name: claims[name] or [inf])
    clocks = {**here, "gpu": ideal_clock(load_hardware("h100"))}
    return (_listed(name, claims[name], clocks) for name in in_order)


def _listed(name: str, claims: list[int], clocks: Mapping[str, Clock]) -> ListedStudy:
    """Return a study that comes with archlab. If a scale has no clock, its time is not estimated."""
    study = library_study(name, AS_IT_STANDS)
    return ListedStudy(
        name=name,
        question=study.question,
        claim=study.claim,
        primary=study.primary,
        others=[name for name in study.measure if name != study.primary],
        takes={scale: _forecast_at(name, scale, clocks.get(scale)) for scale in scales_of(name)},
        claims=claims,
    )


def _forecast_at(name: str, scale: str, clock: Clock | None) -> Forecast:
    study = library_study(name, scale)
    return forecast(study, _unprepared(study), clock)


def _unprepared(study: StudyConfig) -> list[Arm]:
    """Return the arms without opening a corpus. If the budget is in bytes, the number of training tokens is
    estimated."""
    if (n_bytes := study.budget.bytes) is None:
        return arms(study)
    designed = arms(study.model_copy(update={"budget": Budget(tokens=n_bytes)}))
    return [arm.training(round(n_bytes / bytes_per_token(arm.config.model.vocab_size))) for arm in designed]
