"""Studies that come with archlab, and the plan of any study: its arms and what its runs would take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from archlab.config.core.base import Base
from archlab.config.core.merge import Raw
from archlab.config.io import studies
from archlab.config.training import resolve_train
from archlab.displayed import Library, as_frame
from archlab.errors import UserError
from archlab.evidence.claims import Claim, claim_of
from archlab.evidence.pace import TrainingPace, training_pace
from archlab.pricing.hardware import load_hardware
from archlab.review.findings import in_one_line, warnings
from archlab.study.arm import Arm
from archlab.study.checks import untrained_notes
from archlab.study.design import arms, single_arm_note
from archlab.study.executors.executor import RunNeeds, default_threads, needs
from archlab.study.executors.local import default_workers, visible_gpus
from archlab.study.forecast import Clock, Forecast, bytes_per_token, forecast, ideal_clock
from archlab.study.schema import Budget, StudyConfig
from archlab.study.study_file import (
    AS_IT_STANDS,
    QUICKEST,
    library_study,
    read_study,
    scales_of,
    study_from_values,
    study_path,
)


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


def list_studies() -> list[ListedStudy]:
    """Return the studies that come with archlab: question, claims, and what the runs take at each scale.

    They are sorted by the number of the first claim in the ledger that they test. Times are in seconds of training. At
    `smoke` and `cpu`, they are those of this machine if it has been measured, and otherwise those of two cores of the
    machine on which archlab's own studies ran. At `gpu`, they assume the limits of one H100, which no training reaches.

    >>> archlab.list_studies()[0].name
    'norm-placement'
    """
    pace = training_pace()
    here = dict.fromkeys((QUICKEST, AS_IT_STANDS), pace.clock) if pace.clock else {}
    claims = {name: [claim.number for claim in claim_of(name)] for name in studies()}
    in_order = sorted(claims, key=lambda name: claims[name] or [inf])
    clocks = {**here, "gpu": ideal_clock(load_hardware("h100"))}
    return [_listed(name, claims[name], clocks) for name in in_order]


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


@dataclass(frozen=True)
class PlannedStudy:
    """A study before it runs: its arms, and what its runs would take."""

    config: StudyConfig
    arms: Sequence[Arm]
    claims: Sequence[Claim]
    """Claims of the ledger that the study tests. Empty for a study that does not come with archlab."""
    forecast: Forecast
    """Number of runs, training FLOPs, and training time in seconds of all runs, one after another."""
    pace: TrainingPace
    """Training speed on which the forecast's time is based."""
    needs: RunNeeds
    """Cores, GPUs and bytes of memory that each run uses on this machine."""
    workers: int
    """Number of runs that this machine would train at the same time."""
    notes: Sequence[str]
    """Notes about the design, and about shapes of models."""

    def frame(self, library: Library | None = None) -> Any:
        """Return one row per arm: the arm that it is compared with, its size, and its training.

        `library` is `pandas` or `polars`, for a data frame. None returns a list of dicts. Raise UserError if the
        library is not installed.
        """
        return as_frame([_row(arm) for arm in self.arms], library)


def _row(arm: Arm) -> dict[str, Any]:
    model, train = arm.config.model, resolve_train(arm.config)
    return {
        "arm": arm.name,
        "reference": arm.reference,
        "changes": {**arm.overrides, **arm.adjusted},
        "follows": arm.follows,
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "parameters": arm.parameters,
        "tokens": train.trained,
        "lr": train.lr,
    }


def plan_study(study: str | Path | Raw | StudyConfig, scale: str | None = None) -> PlannedStudy:
    """Return the arms of a study and an estimate of what its runs would take. Nothing is trained.

    - `study`: the name of a study that comes with archlab, a YAML file, a study folder, the values of a study file, or
      a StudyConfig.
    - `scale`: one of the scales of the study, such as `smoke`. None means the values of the study file itself.

    Raise UserError if the study is invalid, or if it has no such scale.

    >>> plan = archlab.plan_study("norm-kind", scale="smoke")
    >>> [(row["arm"], row["parameters"]) for row in plan.frame()]
    [('layer', 267392), ('rms', 266816), ('plain', 266240)]
    >>> plan.forecast.runs
    6
    """
    if isinstance(study, str | Path):
        config, source = read_study(str(study), scale)[1], study_path(str(study))
    elif scale is not None:
        raise UserError(f"scale: {scale!r}; allowed for a study without a file: None")
    else:
        config, source = study if isinstance(study, StudyConfig) else study_from_values(study), "the study"
    designed, pace = arms(config, source), training_pace()
    configs = [arm.config for arm in designed]
    each = needs(configs, default_threads(configs))
    of_shapes = list(dict.fromkeys(text for config in configs for text in warnings(config)))
    return PlannedStudy(
        config,
        designed,
        claim_of(str(study)) if isinstance(study, str) and study in studies() else (),
        forecast(config, designed, pace.clock),
        pace,
        each,
        default_workers(each.cores, visible_gpus() if each.gpus else []),
        [
            *single_arm_note(designed),
            *untrained_notes(config.measure.values(), designed),
            *([in_one_line(of_shapes)] if of_shapes else []),
        ],
    )
