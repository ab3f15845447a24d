"""Run a study: tune every arm, train it with every seed, time it, and summarize the finished runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch

from archlab.config.core.text import command_line, note, print_to_stderr
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.files import RUNS, STUDY
from archlab.study.arm import Arm
from archlab.study.checks import arm_notes
from archlab.study.collect import summarize_study
from archlab.study.comparisons import comparisons
from archlab.study.design import arms, single_arm_note
from archlab.study.executors.executor import Executor, RunProgress, default_threads
from archlab.study.executors.local import Local
from archlab.study.folder import (
    Corpora,
    added_later,
    changed_fields,
    claim_folder,
    describe_text,
    old_summary,
    open_corpora,
    planned_seeds,
    read_corpora,
    remove_stale,
)
from archlab.study.known_runs import KnownRuns, NamedRun, write_known_runs
from archlab.study.outcomes.chosen import outcomes_of
from archlab.study.outcomes.gather import StudyRuns, gather
from archlab.study.outcomes.timing import OnTiming, forget_timings, no_progress, read_timings, time_all
from archlab.study.plan import StudyPlan, TuningResult, tune
from archlab.study.record import StudySummary
from archlab.study.runs import Ended, Run
from archlab.study.schema import AddedSeeds, Seeds, StudyConfig, first_seeds
from archlab.study.stats import seeds_in_all
from archlab.study.summary_file import has_summary, kept_name, write_summary
from archlab.training.compiling import is_compiled
from archlab.training.device import choose_device, environment, planned_device
from archlab.training.run_files import SUMMARY

StartPhase = Callable[[Sequence[Run]], Callable[[RunProgress], None]]
"""Function that is called with the runs of a phase. It returns a callback that takes the progress of a run."""


class Study:
    """A study and its folder.

    `executor` trains the runs; the default trains them on this machine. `threads` is the number of threads per run; the
    default depends on this machine. `source` is the name of the study's file in error messages.
    """

    def __init__(
        self,
        name: str,
        config: StudyConfig,
        folder: Path,
        executor: Executor | None = None,
        threads: int | None = None,
        source: str = "the study",
    ) -> None:
        self.name, self.config, self.folder = name, config, folder
        self.arms = _with_one_choice_of_compiling(arms(config, source))
        self.outcomes = outcomes_of(config, self.arms)
        self.executor = executor or Local()
        self.threads = threads or default_threads([arm.config for arm in self.arms])
        self._damaged: dict[str, RunProgress] = {}
        """Failures of runs with damaged files, by the name of the run."""

    @cached_property
    def corpora(self) -> Corpora:
        """Corpus by arm, as recorded when the study ran. If nothing is recorded yet, the corpora are opened."""
        return read_corpora(self.arms, self.folder) or open_corpora(self.arms)

    @property
    def plan(self) -> StudyPlan:
        return StudyPlan(self.config, self.arms, self.corpora, self.outcomes, self.threads)

    def run(self, start_phase: StartPhase, renew: bool = False, on_timing: OnTiming = no_progress) -> StudySummary:
        """Train all missing runs, then write and return the summary.

        `renew` repeats runs that were made with different code or on a different machine. If a run fails, the other
        runs go on, and the summary names the failed run. Raise UserError if no run has finished.
        """
        print_to_stderr(describe_text(self.config, self.arms))
        for text in (*single_arm_note(self.arms), *arm_notes(self.outcomes.values(), self.arms)):
            note(text)
        self.corpora = open_corpora(self.arms)  # it may have changed since
        if not renew:
            self._check_dtype_of_finished_runs()
        claim_folder(self.folder, self.config, self.corpora)
        if renew:
            now = environment(choose_device(self.arms[0].config.train))
            remove_stale(self.folder / RUNS, now | {"threads": self.threads})
            forget_timings(self.folder)
        plan = self.plan
        plan.check_start()
        first = self.config.seed_list
        self._list_runs(tune(plan, self._ended), first)
        if (start := plan.start) and (no_start := self._run([start], start_phase)):
            raise UserError(f"{self.folder}: the base, with whose weights all arms begin, failed: {no_start[0].failed}")
        failed = self._run(list(plan.all_tuning()), start_phase)
        tuned = tune(plan, self._ended)
        self._list_runs(tuned, first)
        failed += self._run(list(self._runs(tuned, first)), start_phase)
        seeds = self._seeds(tuned, self.config.seeds)
        self._list_runs(tuned, seeds)
        added = [seed for seed in seeds if seed not in first]
        failed += self._run(list(self._runs(tuned, added)), start_phase)
        if len(tuned.arms) == len(self.arms):
            time_all(self.outcomes.values(), tuned.arms, self.folder, on_timing)
        return self._summarize(tuned, failed)

    def read(self) -> StudySummary:
        """Write and return the summary of the finished runs, without training.

        If the folder contains no runs of this study, return the old summary. Raise UserError if there is no finished
        run and no old summary, or if tuning is not finished.
        """
        begun = any(self._ended(run) for run in self._first_runs()) or self._damaged
        if has_summary(self.folder) and not begun:
            return old_summary(self.folder)
        return self._summarize(tune(self.plan, self._ended), failed=())

    def changed(self) -> list[str]:
        """Return the names of the fields in which this study differs from the study in the folder."""
        return changed_fields(self.folder, self.config)

    def _list_runs(self, tuned: TuningResult, seeds: Sequence[int]) -> None:
        """Write the list of the runs that are known now."""
        plan = self.plan
        before = [*([plan.start] if plan.start else []), *plan.all_tuning()]
        compared = {
            arm: {seed: run.name for seed, run in runs.items()}
            for arm, runs in plan.comparison(tuned.arms, seeds).items()
        }
        known = KnownRuns(before=[NamedRun(run.name, run.label) for run in before], compared=compared)
        write_known_runs(self.folder, known, self.arms)

    def _runs(self, tuned: TuningResult, seeds: Sequence[int]) -> Iterator[Run]:
        plan = self.plan
        for seed in seeds:
            for arm in tuned.arms:
                if self.config.has_run(arm.size, seed):
                    yield plan.compared(arm, seed)
                    yield from plan.swept(arm, seed).values()

    def _seeds(self, tuned: TuningResult, seeds: Seeds) -> list[int]:
        """Return the seeds of the comparison. A rule adds seeds once all runs of the first seeds have ended."""
        first = first_seeds(seeds)
        if not isinstance(seeds, AddedSeeds) or len(tuned.arms) < len(self.arms):
            return first
        first_runs = self._ended_runs(tuned, first)
        if any(len(runs) < len(first) for runs in first_runs.ended.values()):
            return first
        values = gather(next(iter(self.outcomes.values())), first_runs)
        return list(range(seeds_in_all(values, comparisons(tuned.arms), seeds, self.plan.n_folds)))

    def _first_runs(self) -> list[Run]:
        """Return the runs of the study's first phase. If one of these runs has ended, the study has already begun in
        this folder."""
        plan = self.plan
        compared = plan.comparison(self.arms, self.config.seed_list)
        return list(plan.all_tuning()) or [run for runs in compared.values() for run in runs.values()]

    def _check_dtype_of_finished_runs(self) -> None:
        """Raise UserError if `train.dtype: auto` is another dtype here than where the folder's finished runs were
        trained."""
        for run in self._first_runs():
            if run.config.train.dtype != "auto" or run.folder(self.folder).exists():
                continue
            dtype = planned_device(run.config.train).dtype
            others = (other for other in (torch.bfloat16, torch.float32) if other != dtype)
            ended = [other for other in others if (self.folder / RUNS / run.name_in(other) / SUMMARY).is_file()]
            if ended:
                theirs, ours = (str(x).removeprefix("torch.") for x in (ended[0], dtype))
                raise UserError(
                    f"{self.folder}: its finished runs have {theirs}, but train.dtype: auto is {ours} on this machine; "
                    f"to go on, write train.dtype: {theirs} under `set` in {self.folder / STUDY}, and use "
                    f"`{command_line('study run', str(self.folder))}`; to train all runs again, use --renew"
                )

    def _ended_runs(self, tuned: TuningResult, seeds: Sequence[int]) -> StudyRuns:
        plan = self.plan
        ended = {
            name: {seed: results for seed, run in runs.items() if (results := self._ended(run))}
            for name, runs in plan.comparison(tuned.arms, seeds).items()
        }
        swept = dict[str, dict[int, dict[float, Ended]]]()
        for arm in tuned.arms:
            for seed in seeds:
                runs = plan.swept(arm, seed) if self.config.has_run(arm.size, seed) else {}
                results = {value: result for value, run in runs.items() if (result := self._ended(run))}
                if runs and len(results) == len(runs):
                    swept.setdefault(arm.name, {})[seed] = results
        return StudyRuns(tuned.arms, ended, swept, read_timings(self.outcomes.values(), tuned.arms, self.folder))

    def _ended(self, run: Run) -> Ended | None:
        """Return the results of a run, or None if the run has not ended or its files are damaged. A run with damaged
        files counts as failed."""
        self._damaged.pop(run.name, None)
        try:
            return run.ended(self.folder)
        except UserError as error:
            self._damaged[run.name] = RunProgress(run, 0.0, failed=str(error))
            return None

    def _run(self, runs: Sequence[Run], start_phase: StartPhase) -> list[RunProgress]:
        """Train the runs that are not finished, and return the runs that failed. Arms with identical configs share
        runs.

        A run with damaged files is not trained. It is reported as failed, and the summary names it.
        """
        by_name: dict[str, Run] = {}
        for run in runs:
            if not run.is_over(self._ended(run)):
                by_name.setdefault(run.name, run)
        if not by_name:
            return []
        on_progress = start_phase(list(by_name.values()))
        for progress in (self._damaged[name] for name in by_name if name in self._damaged):
            on_progress(progress)
        todo = [run for name, run in by_name.items() if name not in self._damaged]
        return self.executor.run_all(todo, self.folder, on_progress)

    def _summarize(self, tuned: TuningResult, failed: Sequence[RunProgress]) -> StudySummary:
        plan, seeds = self.plan, self._seeds(tuned, self.config.seeds)
        runs = plan.comparison(tuned.arms, seeds)
        by_name = {run.name: run for run in (*self._runs(tuned, seeds), *plan.all_tuning())}
        all_ended = [result for run in by_name.values() if (result := self._ended(run))]
        ended = self._ended_runs(tuned, seeds)
        reasons = {progress.run.label: str(progress.failed) for progress in (*self._damaged.values(), *failed)}
        lines = [f"\n  {label}: failed: {why}" for label, why in reasons.items()]
        if len(tuned.arms) < len(self.arms):
            raise UserError(
                f"{self.folder}: tuning is not finished; continue it with `archlab study run`{''.join(lines)}"
            )
        if not any(ended.ended.values()):
            if reasons:
                raise UserError(f"{self.folder}: no run finished{''.join(lines)}")
            raise UserError(f"{self.folder} has no finished run; `archlab study run` trains them")
        warnings = tuned.warnings
        if (planned := planned_seeds(self.folder)) is not None:
            warnings = [*warnings, *added_later(self._seeds(tuned, planned), seeds)]
        name = kept_name(self.folder) or self.name
        summary = summarize_study(name, plan, ended, runs, all_ended, self.folder, reasons, tuned.points, warnings)
        write_summary(self.folder, summary)
        return summary


def _with_one_choice_of_compiling(designed: Sequence[Arm]) -> list[Arm]:
    """Replace `train.compile: auto` by one choice for all arms: compile only if every arm would be compiled.

    Compiled layers are faster and round differently. A comparison must not mistake these effects for a difference
    between arms.
    """
    is_compiled_everywhere = all(
        is_compiled(arm.config, resolve_train(arm.config), planned_device(arm.config.train)) for arm in designed
    )
    return [arm.compiled(is_compiled_everywhere) if arm.config.train.compile == "auto" else arm for arm in designed]
