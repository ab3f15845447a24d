"""The runs of a study (tuning, comparison and sweep), and the choice of the tuned values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf
from statistics import fmean
from typing import NamedTuple

from archlab.config.core.merge import Raw
from archlab.config.tasks import Task
from archlab.errors import UserError
from archlab.study.arm import Arm
from archlab.study.design import grid
from archlab.study.folder import Corpora, judging_folds
from archlab.study.outcomes.schema import Outcome
from archlab.study.record import TuningPoint
from archlab.study.runs import Ended, Run
from archlab.study.schema import FIRST_TUNING_SEED, StudyConfig
from archlab.study.shared_start import start_config
from archlab.study.stats import Folds, shared_folds
from archlab.training.trained_weights import open_weights

_FEW_FOLDS = 5
"""Number of folds below which a test is much weaker than the number of seeds suggests."""


@dataclass(frozen=True)
class StudyPlan:
    """A study's config, together with its arms and their corpora."""

    config: StudyConfig
    arms: Sequence[Arm]
    corpora: Corpora
    outcomes: Mapping[str, Outcome]
    """Outcomes by name, with the primary outcome first."""
    threads: int

    @property
    def start(self) -> Run | None:
        """The run that trains the base, if the study does this itself. It never reads a fold for evaluation."""
        if (config := start_config(self.config)) is None:
            return None
        fold, *excluded = self._evaluated_folds(self.arms[0])
        data = config.data.model_copy(update={"fold": fold, "excluded_folds": tuple(excluded)})
        train = config.train.model_copy(update={"compile": self.arms[0].config.train.compile})
        config = config.model_copy(update={"data": data, "train": train})
        corpus = self.corpora[self.arms[0].name].fingerprint
        return Run("the base", config, corpus, self.threads, phase="start")

    def check_start(self) -> None:
        """Raise UserError if the weights in the folder `start` have read a fold on which the study evaluates."""
        if not isinstance(self.config.start, str):
            return
        start, arm = open_weights(self.config.start), self.arms[0]
        folds = self._evaluated_folds(arm)
        if read := start.read_folds(self.corpora[arm.name].fingerprint, folds):
            problem = f"{start.name} was trained on fold {read[0]} of the text, on which this study evaluates"
            own = f"weights that were trained with data.fold={folds[0]} and data.excluded_folds={list(folds[1:])}"
            raise UserError(f"start: {problem}; allowed: {own}, or fewer folds and no `tune`")

    def compared(self, arm: Arm, seed: int) -> Run:
        """Return the run of the comparison for an arm and a seed. With n folds for evaluation, the run is evaluated on
        fold `seed % n`."""
        config = arm.seeded(seed, seed % self._judging_folds(arm))
        measures = tuple(outcome for outcome in self.outcomes.values() if outcome.source == "weights")
        corpus = self.corpora[arm.name].fingerprint
        return Run(f"{arm.label}, seed {seed}", config, corpus, self.threads, measures, start=self.start)

    def comparison(self, arms: Iterable[Arm], seeds: Iterable[int]) -> dict[str, dict[int, Run]]:
        """Return the runs of the comparison, by arm and seed."""
        chosen = list(seeds)
        return {
            arm.name: {seed: self.compared(arm, seed) for seed in chosen if self.config.has_run(arm.size, seed)}
            for arm in arms
        }

    def swept(self, arm: Arm, seed: int) -> dict[float, Run]:
        """Return the sweep runs of an arm and a seed, by value of the swept field. Empty if the study has no sweep."""
        return {
            value: self._with(arm, {field: value}, seed, seed % self._judging_folds(arm))
            for field, values in self.config.sweep.items()
            for value in values
        }

    def tuning(self) -> dict[str, list[list[Run]]]:
        """Return the tuning runs of each arm: one list of runs for each point of the grid. Empty if the study does not
        tune.

        Tuning runs are evaluated on the last fold. The comparison never evaluates on this fold, so its text does not
        affect the choice of the values.
        """
        points = grid(self.config)
        free = (seed for seed in count(FIRST_TUNING_SEED) if seed not in self.config.seed_list)
        seeds = list(islice(free, self.config.tune_seeds))
        folds = {arm.name: self.corpora[arm.name].n_folds - 1 for arm in self.arms}
        return {
            arm.name: [
                [replace(self._with(arm, point, seed, folds[arm.name]), phase="tuning") for seed in seeds]
                for point in points
            ]
            for arm in (self.arms if points else ())
        }

    def all_tuning(self) -> Iterator[Run]:
        return (run for rows in self.tuning().values() for runs in rows for run in runs)

    @property
    def n_folds(self) -> int | None:
        """Number n of folds, if each seed is evaluated on fold `seed % n`; None if all seeds are evaluated on one
        fold."""
        n_folds = self._judging_folds(self.arms[0])
        return n_folds if n_folds > 1 else None

    def shared_folds(self, seeds: Sequence[int]) -> Folds:
        """Return the fold of each seed if the test must use one value per fold; otherwise None."""
        return shared_folds({seed: seed % (self.n_folds or 1) for seed in seeds})

    def _with(self, arm: Arm, values: Raw, seed: int, fold: int) -> Run:
        suffix = "".join(f", {field}={value}" for field, value in values.items())
        config = arm.with_values(values).seeded(seed, fold)
        corpus = self.corpora[arm.name].fingerprint
        return Run(f"{arm.label}{suffix}, seed {seed}", config, corpus, self.threads, start=self.start)

    def _evaluated_folds(self, arm: Arm) -> tuple[int, ...]:
        """Folds on which runs of the study are evaluated: those of the comparison, then that of tuning."""
        tuning = [self.corpora[arm.name].n_folds - 1] if self.config.tune else []
        return *range(self._judging_folds(arm)), *tuning

    def _judging_folds(self, arm: Arm) -> int:
        corpus = self.corpora[arm.name]
        return judging_folds(self.config, corpus.data, corpus.n_folds)


def fold_warnings(plan: StudyPlan, seeds: Sequence[int]) -> Iterator[str]:
    """Yield a warning if many seeds are evaluated on few folds, and a warning if a tokenizer may have been trained on
    one of these folds."""
    corpus = plan.corpora[plan.arms[0].name]
    n_folds = plan.n_folds or 1
    used = {seed % n_folds for seed in seeds}
    if len(used) == 1 < n_folds:
        yield f"all seeds are evaluated on fold {min(used)}, so the intervals hold only for that part of the text"
    elif 1 < len(used) < min(len(seeds), _FEW_FOLDS):
        yield (
            f"{len(seeds)} seeds are evaluated on {len(used)} folds, so the test has only {len(used)} values; "
            f"more folds (up to {corpus.n_folds - bool(plan.config.tune)}) would find smaller differences"
        )
    if n_folds > corpus.test_folds and not isinstance(plan.arms[0].config.data.task, Task):
        where = f"some of the folds for evaluation: those after the first {corpus.test_folds}"
        yield f"the tokenizer may have been trained on {where}"


class TuningResult(NamedTuple):
    """Arms with their tuned values, warnings, and the results at all points of the tuning grid."""

    arms: list[Arm]
    """Arms whose tuning is finished, with their best values. If the study does not tune: all arms, unchanged."""
    warnings: list[str]
    """One warning for each best value at the edge of its grid, and for each arm that diverged at every point of the
    grid."""
    points: list[TuningPoint]
    """Results at every point of the tuning grid, for each arm in `arms`."""


def tune(plan: StudyPlan, ended: Callable[[Run], Ended | None]) -> TuningResult:
    """Choose the best tuned values of each arm. `ended` returns the results of a run, or None if the run has not
    ended."""
    points, tuning_runs = grid(plan.config), plan.tuning()
    if not points:
        return TuningResult(list(plan.arms), [], [])
    tuned = TuningResult([], [], [])
    for arm in plan.arms:
        results = [[ended(run) for run in runs] for runs in tuning_runs[arm.name]]
        finished = [[run for run in runs if run] for runs in results]
        if list(map(len, finished)) != list(map(len, results)):
            continue
        losses = [_mean_loss(runs) for runs in finished]
        best = min(range(len(points)), key=lambda i: losses[i])
        if losses[best] == inf:
            tuned.warnings.append(f"{arm.label}: diverged at every value of the tuning grid; the first value is used")
        else:
            tuned.warnings.extend(f"{arm.label}: {warning}" for warning in _edge_warnings(plan, points[best]))
        tuned.arms.append(arm.with_values(points[best]))
        tuned.points.extend(
            TuningPoint(arm=arm.name, values=point, results=[run.summary.score for run in runs], chosen=i == best)
            for i, (point, runs) in enumerate(zip(points, finished, strict=True))
        )
    return tuned


def _mean_loss(runs: Sequence[Ended]) -> float:
    """Return the mean score or, for a task, the mean fraction of incorrect answers. Return infinity if a run
    diverged."""
    scores = [run.summary for run in runs]
    if any(summary.status == "diverged" for summary in scores):
        return inf
    return fmean((s.score or 0) if s.accuracy is None else 1 - s.accuracy for s in scores)


def _edge_warnings(plan: StudyPlan, best: Raw) -> Iterator[str]:
    for field, values in plan.config.tune.items():
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        if numbers and len(values) > 1 and best[field] in (min(values), max(values)):
            yield f"{field} = {best[field]} is best, at the edge of its grid; a wider grid may find a better value"
