"""Which runs a study has: to tune, to compare, to sweep; and what tuning finds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf
from statistics import fmean
from typing import NamedTuple

from archlab.config.core.merge import Raw
from archlab.config.tasks import Task
from archlab.study.arm import Arm
from archlab.study.design import grid
from archlab.study.folder import Corpora, judging_folds
from archlab.study.outcome_schema import Outcome
from archlab.study.record import TuningPoint
from archlab.study.runs import Ended, Run
from archlab.study.schema import FIRST_TUNING_SEED, StudyConfig
from archlab.study.stats import Folds

_FEW_FOLDS = 5
"""Fewer make a test much weaker than its seeds suggest."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study's file says, with its arms and the texts that they read."""

    config: StudyConfig
    arms: Sequence[Arm]
    corpora: Corpora
    outcomes: Mapping[str, Outcome]
    """By name, the one that the answer is about first."""
    threads: int
    """Of each run."""

    def compared(self, arm: Arm, seed: int) -> Run:
        """The run of one arm and seed; the folds for tests take turns."""
        config = arm.seeded(seed, seed % self._judging_folds(arm))
        measures = tuple(outcome for outcome in self.outcomes.values() if outcome.source == "weights")
        return Run(f"{arm.label}, seed {seed}", config, self.corpora[arm.name].fingerprint, self.threads, measures)

    def swept(self, arm: Arm, seed: int) -> dict[float, Run]:
        """By the value of the swept field; empty where the study sweeps none."""
        return {
            value: self._with(arm, {field: value}, seed, seed % self._judging_folds(arm))
            for field, values in self.config.sweep.items()
            for value in values
        }

    def tuning(self) -> dict[str, list[list[Run]]]:
        """Arm -> its tuning runs for each point of the grid; empty when nothing is tuned. Judged on the last fold, so
        that no value is chosen for the text by which it is compared."""
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
        """Every tuning run."""
        return (run for rows in self.tuning().values() for runs in rows for run in runs)

    @property
    def n_folds(self) -> int | None:
        """Folds that judge the seeds in turn; None where one judges all, so that no seed is about other text."""
        n_folds = self._judging_folds(self.arms[0])
        return n_folds if n_folds > 1 else None

    def shared_folds(self, seeds: Sequence[int]) -> Folds:
        """Seed -> its fold, where several seeds share one but not all the same: then the study is not about one fold,
        yet has fewer of them than seeds."""
        folds = {seed: seed % (self.n_folds or 1) for seed in seeds}
        return folds if 1 < len(set(folds.values())) < len(seeds) else None

    def _with(self, arm: Arm, values: Raw, seed: int, fold: int) -> Run:
        said = "".join(f", {field}={value}" for field, value in values.items())
        config = arm.with_values(values).seeded(seed, fold)
        return Run(f"{arm.label}{said}, seed {seed}", config, self.corpora[arm.name].fingerprint, self.threads)

    def _judging_folds(self, arm: Arm) -> int:
        corpus = self.corpora[arm.name]
        return judging_folds(self.config, corpus.data, corpus.n_folds)


def doubts_of_folds(plan: StudyPlan, seeds: Sequence[int]) -> Iterator[str]:
    """Warnings where few folds judge many seeds, or where a tokenizer has learned from a fold that judges."""
    corpus = plan.corpora[plan.arms[0].name]
    n_folds = plan.config.folds or corpus.test_folds
    used = {seed % n_folds for seed in seeds}
    if len(used) == 1 < n_folds:
        yield f"all seeds are judged on fold {min(used)}: the intervals are about that part of the text alone"
    elif 1 < len(used) < min(len(seeds), _FEW_FOLDS):
        yield (
            f"{len(seeds)} seeds are judged on {len(used)} folds, and tested as {len(used)}: more folds, up to "
            f"{corpus.n_folds - bool(plan.config.tune)}, would find smaller differences"
        )
    if n_folds > corpus.test_folds and not isinstance(plan.arms[0].config.data.task, Task):
        yield f"the tokenizer may have learned from the folds beyond the first {corpus.test_folds} that judge"


class Tuned(NamedTuple):
    """What tuning found."""

    arms: list[Arm]
    """Those whose tuning is over, with their best values; all as they were where nothing is tuned."""
    warnings: list[str]
    """For each arm whose best value lies on the grid's edge, or that diverged everywhere."""
    points: list[TuningPoint]
    """Every point of the grid for every one of these arms."""


def tune(plan: StudyPlan, ended: Callable[[Run], Ended | None]) -> Tuned:
    """`ended`: what a run left, or None while it has not ended."""
    points, tries = grid(plan.config), plan.tuning()
    if not points:
        return Tuned(list(plan.arms), [], [])
    tuned = Tuned([], [], [])
    for arm in plan.arms:
        left = [[ended(run) for run in runs] for runs in tries[arm.name]]
        over = [[run for run in runs if run] for runs in left]
        if list(map(len, over)) != list(map(len, left)):
            continue
        losses = [_mean_loss(runs) for runs in over]
        best = min(range(len(points)), key=lambda i: losses[i])
        if losses[best] == inf:
            tuned.warnings.append(f"{arm.label}: diverged at every value of the tuning grid; the first is used")
        else:
            tuned.warnings.extend(f"{arm.label}: {warning}" for warning in _edges(plan, points[best]))
        tuned.arms.append(arm.with_values(points[best]))
        tuned.points.extend(
            TuningPoint(arm=arm.name, values=point, results=[run.summary.score for run in runs], chosen=i == best)
            for i, (point, runs) in enumerate(zip(points, over, strict=True))
        )
    return tuned


def _mean_loss(runs: Sequence[Ended]) -> float:
    """Bits per byte, or the share of wrong answers; infinite where a run diverged."""
    scores = [run.summary for run in runs]
    if any(summary.status == "diverged" for summary in scores):
        return inf
    return fmean(1 - (s.accuracy or 0) if s.bits_per_byte is None else s.bits_per_byte for s in scores)


def _edges(plan: StudyPlan, best: Raw) -> Iterator[str]:
    """A warning for each number that is the smallest or the largest of its grid."""
    for field, values in plan.config.tune.items():
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        if numbers and len(values) > 1 and best[field] in (min(values), max(values)):
            yield f"{field} = {best[field]} won at the edge of its grid; a wider one may find better"
