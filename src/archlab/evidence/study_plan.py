"""Plan of a study: its arms, and what its runs would take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archlab.config.io import studies
from archlab.config.training import resolve_train
from archlab.displayed import Displayed, Library, as_frame
from archlab.evidence.claims import Claim, claim_of
from archlab.evidence.pace import TrainingPace, training_pace
from archlab.review.findings import in_one_line, warnings
from archlab.study.arm import Arm
from archlab.study.checks import arm_notes
from archlab.study.design import arms, single_arm_note
from archlab.study.forecast import Forecast, forecast
from archlab.study.schema import StudyConfig
from archlab.study.study_file import given_study

if TYPE_CHECKING:  # loads torch, which a plan that is shown does not need
    from archlab.study.executors.executor import RunNeeds


@dataclass(frozen=True, repr=False)
class PlannedStudy(Displayed):
    """A study before it runs: its arms, and what its runs would take."""

    name: str
    """Name of the study or of its file. Empty for a study without a file."""
    config: StudyConfig
    arms: Sequence[Arm]
    claims: Sequence[Claim]
    """Claims of the ledger that the study tests. Empty for a study that does not come with archlab."""
    forecast: Forecast
    """Number of runs, training FLOPs, and training time in seconds of all runs, one after another."""
    pace: TrainingPace
    """Training speed on which the forecast's time is based."""
    needs: "RunNeeds"
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


def plan_study(study: str | Path | Mapping[str, Any] | StudyConfig, scale: str | None = None) -> PlannedStudy:
    """Return the arms of a study and an estimate of what its runs would take. Nothing is trained.

    - `study`: a study that comes with archlab, a YAML file, a study folder, the values of a study file, or a
      StudyConfig.
    - `scale`: a scale of the study, such as `smoke`. None means the values of the study file itself.

    Raise UserError if the study is invalid, or if it has no such scale.

    >>> plan = archlab.plan_study("norm-kind", scale="smoke")
    >>> [(row["arm"], row["parameters"]) for row in plan.frame()]
    [('layer', 267392), ('rms', 266816), ('plain', 266240)]
    >>> plan.forecast.runs
    6
    """
    from archlab.study.executors.executor import default_threads, needs
    from archlab.study.executors.local import default_workers, visible_gpus

    name, config, source = given_study(study, scale)
    designed, pace = arms(config, source), training_pace()
    configs = [arm.config for arm in designed]
    each = needs(configs, default_threads(configs))
    of_shapes = list(dict.fromkeys(text for config in configs for text in warnings(config)))
    return PlannedStudy(
        str(study) if isinstance(study, str) else name or "",
        config,
        designed,
        claim_of(str(study)) if isinstance(study, str) and study in studies() else (),
        forecast(config, designed, pace.clock),
        pace,
        each,
        default_workers(each.cores, visible_gpus() if each.gpus else []),
        [
            *single_arm_note(designed),
            *arm_notes(config.measure.values(), designed),
            *([in_one_line(of_shapes)] if of_shapes else []),
        ],
    )
