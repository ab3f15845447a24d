"""Running a study: tune every arm, train every arm with every seed, time them, and summarise what has ended."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from archlab.config.core.text import print_to_stderr
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.study.arm import Arm
from archlab.study.checks import named_outcomes
from archlab.study.collect import summarise
from archlab.study.comparisons import comparisons
from archlab.study.design import arms
from archlab.study.executors.executor import Executor, RunProgress, usual_threads
from archlab.study.executors.local import Local
from archlab.study.folder import (
    Corpora,
    added_later,
    changed_fields,
    claim,
    old_summary,
    open_corpora,
    planned_seeds,
    read_corpora,
    reading,
    remove_stale,
)
from archlab.study.outcomes.gather import StudyRuns, gather
from archlab.study.outcomes.timing import OnTiming, forget_timings, read_timings, time_all, unseen
from archlab.study.plan import StudyPlan, Tuned, tune
from archlab.study.record import StudySummary, has_summary, write_summary
from archlab.study.runs import Ended, Run
from archlab.study.schema import AddedSeeds, Seeds, StudyConfig, first_seeds
from archlab.study.stats import seeds_in_all
from archlab.training.compiling import is_compiled
from archlab.training.device import choose_device, environment, planned_device

StartPhase = Callable[[Sequence[Run]], Callable[[RunProgress], None]]
"""Called with the runs of a phase; returns what is to be called with their progress."""


class Study:
    """A study in its folder. `executor`: what trains its runs, this machine where nothing is said. `threads`: of each
    run; as many as are usual on this machine where nothing is said."""

    def __init__(
        self, name: str, config: StudyConfig, folder: Path, executor: Executor | None = None, threads: int | None = None
    ) -> None:
        self.name, self.config, self.folder = name, config, folder
        self.arms = _compiled_alike(arms(config))
        self.outcomes = named_outcomes(config, self.arms)
        self.executor = executor or Local()
        self.threads = threads or usual_threads([arm.config for arm in self.arms])
        self._damaged: dict[str, RunProgress] = {}
        """Name of a run whose files are damaged -> that it failed, and why."""

    @cached_property
    def corpora(self) -> Corpora:
        """Arm -> what it reads, as recorded when the study ran. Where it has not run, the text is opened."""
        return read_corpora(self.arms, self.folder) or open_corpora(self.arms)

    @property
    def plan(self) -> StudyPlan:
        """Its runs."""
        return StudyPlan(self.config, self.arms, self.corpora, self.outcomes, self.threads)

    def run(self, start_phase: StartPhase, renew: bool = False, on_timing: OnTiming = unseen) -> StudySummary:
        """Everything that has not been run yet, then the summary of what there is, which is also written.

        `renew`: runs that were made by other code, or on another machine, are made again. A run that fails ends no
        other; the summary names it. UserError when there is nothing to summarise.
        """
        print_to_stderr(reading(self.config, self.arms))
        self.corpora = open_corpora(self.arms)  # it may have changed since
        claim(self.folder, self.config, self.corpora)
        if renew:
            now = environment(choose_device(self.arms[0].config.train))
            remove_stale(self.folder / "runs", now | {"threads": self.threads})
            forget_timings(self.folder)
        plan = self.plan
        failed = self._run(list(plan.all_tuning()), start_phase)
        tuned = tune(plan, self._ended)
        first = self.config.seed_list
        failed += self._run(list(self._runs(tuned, first)), start_phase)
        added = [seed for seed in self._seeds(tuned, self.config.seeds) if seed not in first]
        failed += self._run(list(self._runs(tuned, added)), start_phase)
        if len(tuned.arms) == len(self.arms):
            time_all(self.outcomes.values(), tuned.arms, self.folder, on_timing)
        return self._summarise(tuned, failed)

    def read(self) -> StudySummary:
        """The summary of what has been run so far, which is also written; for runs made elsewhere, the old one.

        UserError when there is neither, or when tuning is not over.
        """
        begun = any(self._ended(run) for run in self._first_runs()) or self._damaged
        if has_summary(self.folder) and not begun:
            return old_summary(self.folder)
        return self._summarise(tune(self.plan, self._ended), failed=())

    def changed(self) -> list[str]:
        """The fields in which the study that the folder holds differs from this one."""
        return changed_fields(self.folder, self.config)

    def _runs(self, tuned: Tuned, seeds: Sequence[int]) -> Iterator[Run]:
        """To compare, and to sweep, seed by seed."""
        plan = self.plan
        for seed in seeds:
            for arm in tuned.arms:
                yield plan.compared(arm, seed)
                yield from plan.swept(arm, seed).values()

    def _seeds(self, tuned: Tuned, seeds: Seeds) -> list[int]:
        """Those that `seeds` asks for, of the comparison; a rule adds some when all of the first ones have ended."""
        first = first_seeds(seeds)
        if not isinstance(seeds, AddedSeeds) or len(tuned.arms) < len(self.arms):
            return first
        found = self._found(tuned, first)
        if any(len(runs) < len(first) for runs in found.ended.values()):
            return first
        values = gather(next(iter(self.outcomes.values())), found)
        return list(range(seeds_in_all(values, comparisons(tuned.arms), seeds, self.plan.n_folds)))

    def _first_runs(self) -> list[Run]:
        """The runs that come first, and so tell whether the study has begun here."""
        plan = self.plan
        return list(plan.all_tuning()) or [
            plan.compared(arm, seed) for arm in self.arms for seed in self.config.seed_list
        ]

    def _found(self, tuned: Tuned, seeds: Sequence[int]) -> StudyRuns:
        """All that has ended, of these seeds."""
        plan = self.plan
        ended = {
            arm.name: {s: left for s in seeds if (left := self._ended(plan.compared(arm, s)))} for arm in tuned.arms
        }
        swept = dict[str, dict[int, dict[float, Ended]]]()
        for arm in tuned.arms:
            for seed in seeds:
                runs = plan.swept(arm, seed)
                left = {value: found for value, run in runs.items() if (found := self._ended(run))}
                if runs and len(left) == len(runs):
                    swept.setdefault(arm.name, {})[seed] = left
        return StudyRuns(tuned.arms, ended, swept, read_timings(self.outcomes.values(), tuned.arms, self.folder))

    def _ended(self, run: Run) -> Ended | None:
        """None while it has not ended, and for one whose files are damaged, which counts as failed."""
        self._damaged.pop(run.name, None)
        try:
            return run.ended(self.folder)
        except UserError as error:
            self._damaged[run.name] = RunProgress(run, 0.0, failed=str(error))
            return None

    def _run(self, runs: Sequence[Run], start_phase: StartPhase) -> list[RunProgress]:
        """Run those that are not over; arms with the same config share their runs. Returns the ones that failed.

        Damaged runs are only reported; the summary names them.
        """
        once: dict[str, Run] = {}
        for run in runs:
            if not run.is_over(self._ended(run)):
                once.setdefault(run.name, run)
        if not once:
            return []
        on_progress = start_phase(list(once.values()))
        for progress in (self._damaged[name] for name in once if name in self._damaged):
            on_progress(progress)
        todo = [run for name, run in once.items() if name not in self._damaged]
        return self.executor.run_all(todo, self.folder, on_progress)

    def _summarise(self, tuned: Tuned, failed: Sequence[RunProgress]) -> StudySummary:
        plan, seeds = self.plan, self._seeds(tuned, self.config.seeds)
        runs = {arm.name: {seed: plan.compared(arm, seed) for seed in seeds} for arm in tuned.arms}
        once = {run.name: run for run in (*self._runs(tuned, seeds), *plan.all_tuning())}
        every = [left for run in once.values() if (left := self._ended(run))]
        found = self._found(tuned, seeds)
        reasons = {progress.run.label: str(progress.failed) for progress in (*self._damaged.values(), *failed)}
        lines = [f"\n  {label}: failed: {why}" for label, why in reasons.items()]
        if len(tuned.arms) < len(self.arms):
            raise UserError(f"{self.folder}: tuning is not over; `archlab study run` goes on with it{''.join(lines)}")
        if not any(found.ended.values()):
            if reasons:
                raise UserError(f"{self.folder}: no run finished{''.join(lines)}")
            raise UserError(f"{self.folder}: no finished run; `archlab study run` makes them")
        warnings = tuned.warnings
        if (planned := planned_seeds(self.folder)) is not None:
            warnings = [*warnings, *added_later(self._seeds(tuned, planned), seeds)]
        summary = summarise(self.name, plan, found, runs, every, self.folder, reasons, tuned.points, warnings)
        write_summary(self.folder, summary)
        return summary


def _compiled_alike(designed: Sequence[Arm]) -> list[Arm]:
    """With `train.compile: auto` decided once for all arms: compiled only where all would be. Compiled layers round
    otherwise and are faster, and neither is what a study compares."""
    every = all(is_compiled(a.config, resolve_train(a.config), planned_device(a.config.train)) for a in designed)
    return [arm.compiled(every) if arm.config.train.compile == "auto" else arm for arm in designed]
