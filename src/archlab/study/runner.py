"""Running a study: tune every arm, train every arm with every seed, and summarise the runs that have ended."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from statistics import fmean

from archlab.config.merge import Raw
from archlab.config.study_schema import FIRST_TUNING_SEED, AddedSeeds, Seeds, StudyConfig, first_seeds
from archlab.config.training import resolve_train
from archlab.config.yaml_text import to_yaml
from archlab.cost.params import parameters
from archlab.digests import DIGESTS, write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.files import TEMPORARY, disk_errors, make_folder, write_atomic
from archlab.study.collect import summarise
from archlab.study.corpora import Corpora, CorpusRecord, open_corpora, read_corpora, write_corpora
from archlab.study.design import Arm, arms, grid
from archlab.study.more_seeds import seeds_in_all
from archlab.study.planned import added_later, read_plan, write_plan
from archlab.study.pool import SIDE_BY_SIDE_BELOW, RunProgress, run_all
from archlab.study.provenance import remove_stale
from archlab.study.record import StudySummary, has_summary, read_summary, write_summary
from archlab.study.runs import Ended, Run
from archlab.study.study_file import is_study_folder, read_study
from archlab.train.compiling import is_compiled
from archlab.train.device import choose_device, environment

_BASE = "base.yaml"
"""The base in a study's folder, where it is no preset."""

StartPhase = Callable[[Sequence[Run]], Callable[[RunProgress], None]]
"""Called with the runs of a phase; returns what is to be called with their progress."""


class Study:
    """A study in its folder."""

    def __init__(self, name: str, config: StudyConfig, folder: Path, workers: int | None = None) -> None:
        self.name, self.config, self.folder = name, config, folder
        self.arms = _compiled_alike(arms(config))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        side_by_side = _small_on_cpu(self.arms)
        self.workers = workers or (cores if side_by_side else 1)
        self.threads = 1 if side_by_side else cores
        self._damaged: dict[str, RunProgress] = {}
        """Name of a run whose files are damaged -> that it failed, and why."""

    @cached_property
    def corpora(self) -> Corpora:
        """Arm -> what it reads, as recorded when the study ran. Where it has not run, the text is opened."""
        return read_corpora(self.arms, self.folder) or open_corpora(self.arms)

    def run(self, start_phase: StartPhase, renew: bool = False) -> StudySummary:
        """Everything that has not been run yet, then the summary of what there is, which is also written.

        `renew`: runs that were made by other code, or on another machine, are made again. A run that fails ends no
        other; the summary names it. UserError when there is nothing to summarise.
        """
        self.corpora = open_corpora(self.arms)  # it may have changed since
        self._claim()
        if renew:
            now = environment(choose_device(self.arms[0].config.train))
            remove_stale(self.folder / "runs", now | {"threads": self.threads})
        failed = self._run(self._all_tuning_runs(), start_phase)
        tuned, warnings = self._tuned()
        first = self.config.seed_list
        failed += self._run([self._run_of(arm, seed) for seed in first for arm in tuned], start_phase)
        added = [seed for seed in self._seeds(tuned, self.config.seeds) if seed not in first]
        failed += self._run([self._run_of(arm, seed) for seed in added for arm in tuned], start_phase)
        return self._summarise(tuned, warnings, failed)

    def read(self) -> StudySummary:
        """The summary of what has been run so far, which is also written; for runs made elsewhere, the old one.

        UserError when there is neither, or when tuning is not over.
        """
        begun = any(self._ended(run) for run in self._first_runs()) or self._damaged
        if has_summary(self.folder) and not begun:
            return _old_summary(self.folder)
        tuned, warnings = self._tuned()
        return self._summarise(tuned, warnings, failed=())

    def _seeds(self, tuned: Sequence[Arm], seeds: Seeds) -> list[int]:
        """Those that `seeds` asks for, of the comparison; a rule adds some when all of the first ones have ended."""
        first = first_seeds(seeds)
        if not isinstance(seeds, AddedSeeds):
            return first
        ended = {arm.name: {seed: self._ended(self._run_of(arm, seed)) for seed in first} for arm in tuned}
        values = {arm: {seed: e.summary.bits_per_byte for seed, e in runs.items() if e} for arm, runs in ended.items()}
        if len(tuned) < len(self.arms) or any(len(found) < len(first) for found in values.values()):
            return first
        references = {arm.name: arm.reference for arm in tuned if arm.reference}
        return list(range(seeds_in_all(values, references, seeds)))

    def _first_runs(self) -> list[Run]:
        """The runs that come first, and so tell whether the study has begun here."""
        return self._all_tuning_runs() or [
            self._run_of(arm, seed) for arm in self.arms for seed in self.config.seed_list
        ]

    def changed(self) -> list[str]:
        """The fields in which the study that the folder holds differs from this one."""
        before = self._before()
        if before is None or before.question != self.config.question:
            return []
        fields = [name for name in StudyConfig.model_fields if getattr(before, name) != getattr(self.config, name)]
        same_base = "base" in fields and read_config(before.base) == read_config(self.config.base)
        return [name for name in fields if not (same_base and name == "base")]

    def _before(self) -> StudyConfig | None:
        return read_study(str(self.folder))[1] if is_study_folder(self.folder) else None

    def _claim(self) -> None:
        """Make the folder this study's, or check that it is."""
        # Copied, so that the folder stays whole when that file changes or goes.
        base = to_yaml(read_config(self.config.base)).encode() if Path(self.config.base).exists() else None
        with disk_errors(self.folder):
            if self.folder.exists() and not self.folder.is_dir():
                raise UserError(f"{self.folder}: is a file; --out names a folder")
            make_folder(self.folder)
            held = sorted(p for p in self.folder.iterdir() if not p.name.startswith(TEMPORARY))
            # A kill may leave the base and its digest alone.
            foreign = [
                p.name
                for p in held
                if p.name != DIGESTS and not (p.name == _BASE and p.is_file() and p.read_bytes() == base)
            ]
        if before := self._before():
            if before.question != self.config.question:
                raise UserError(f"{self.folder}: holds another study ({before.question!r}); name another folder")
        elif foreign:
            raise UserError(
                f"{self.folder}: holds something else ({foreign[0]}) and no study.yaml; name an empty folder"
            )
        values = self.config.model_dump(mode="json", exclude_defaults=True)
        if base is not None:
            write_with_digests(self.folder, {_BASE: base})
            values["base"] = _BASE
        write_atomic(self.folder / "study.yaml", to_yaml(values))  # not listed, for people may edit it
        write_corpora(self.corpora, self.folder)
        if not has_summary(self.folder):
            write_plan(self.folder, self.config.seeds)

    def _tuned(self) -> tuple[list[Arm], list[str]]:
        """The arms whose tuning is over, with their best value, and a warning for each that lies on the grid's edge."""
        points, tries = grid(self.config), self._tuning_runs()
        if not points:
            return self.arms, []
        tuned, warnings = [], []
        for arm in self.arms:
            scores = [self._mean_score(runs) for runs in tries[arm.name]]
            over = [score for score in scores if score is not None]
            if len(over) < len(scores):
                continue
            best = min(range(len(points)), key=lambda i: over[i])
            if over[best] == float("inf"):
                warnings.append(f"{arm.label}: diverged at every value of the tuning grid; the first is used")
            else:
                warnings += [f"{arm.label}: {w}" for w in self._edges(points[best])]
            tuned.append(arm.with_values(points[best]))
        return tuned, warnings

    def _tuning_runs(self) -> dict[str, list[list[Run]]]:
        """Arm -> its tuning runs for each point of the grid; empty when nothing is tuned."""
        points = grid(self.config)
        free = (seed for seed in count(FIRST_TUNING_SEED) if seed not in self.config.seed_list)
        seeds = list(islice(free, self.config.tune_seeds))
        return {
            arm.name: [[self._tuning_run(arm, point, seed) for seed in seeds] for point in points]
            for arm in (self.arms if points else ())
        }

    def _all_tuning_runs(self) -> list[Run]:
        return [run for rows in self._tuning_runs().values() for runs in rows for run in runs]

    def _mean_score(self, runs: Sequence[Run]) -> float | None:
        """Mean bits per byte; infinite when one diverged, None when one has not ended."""
        ended = [self._ended(run) for run in runs]
        if None in ended:
            return None
        scores = [run.summary.bits_per_byte for run in ended if run]
        return float("inf") if None in scores else fmean(score for score in scores if score is not None)

    def _ended(self, run: Run) -> Ended | None:
        """None while it has not ended, and for one whose files are damaged, which counts as failed."""
        self._damaged.pop(run.name, None)
        try:
            return run.ended(self.folder)
        except UserError as error:
            self._damaged[run.name] = RunProgress(run, 0.0, failed=str(error))
            return None

    def _edges(self, best: Raw) -> list[str]:
        """A warning for each number that is the smallest or the largest of its grid."""
        edges = []
        for field, values in self.config.tune.items():
            numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
            if numbers and len(values) > 1 and best[field] in (min(values), max(values)):
                edges.append(f"{field} = {best[field]} won at the edge of its grid; a wider one may find better")
        return edges

    def _run_of(self, arm: Arm, seed: int) -> Run:
        """Of the comparison: the folds for tests take turns."""
        corpus = self.corpora[arm.name]
        config = arm.seeded(seed, seed % self._test_folds(corpus))
        return Run(f"{arm.label}, seed {seed}", config, corpus.fingerprint, self.threads)

    def _test_folds(self, corpus: CorpusRecord) -> int:
        """Folds on which seeds are judged; UserError where the text has too few, one more being for tuning."""
        n_folds = self.config.folds or corpus.test_folds
        most = corpus.n_folds - bool(self.config.tune)
        if n_folds > most:
            taken = ", and the last one is for tuning" if self.config.tune else ""
            found = f"with data.held_out {corpus.data.held_out} the text has {corpus.n_folds}{taken}"
            raise UserError(f"folds: {n_folds} for tests; {found}; allowed: up to {most}")
        return n_folds

    def _tuning_run(self, arm: Arm, point: Raw, seed: int) -> Run:
        """Judged on the last fold, so that no value is chosen for the text by which it is compared."""
        corpus = self.corpora[arm.name]
        values = "".join(f", {field}={value}" for field, value in point.items())
        config = arm.with_values(point).seeded(seed, corpus.n_folds - 1)
        return Run(f"{arm.label}{values}, seed {seed}", config, corpus.fingerprint, self.threads)

    def _run(self, runs: Sequence[Run], start_phase: StartPhase) -> list[RunProgress]:
        """Run those that have not ended; arms with the same config share their runs. Returns the ones that failed.

        Damaged runs are only reported; the summary names them.
        """
        once: dict[str, Run] = {}
        for run in runs:
            if not self._ended(run):
                once.setdefault(run.name, run)
        if not once:
            return []
        on_progress = start_phase(list(once.values()))
        for progress in (self._damaged[name] for name in once if name in self._damaged):
            on_progress(progress)
        todo = [run for name, run in once.items() if name not in self._damaged]
        return run_all(todo, self.folder, self.workers, on_progress)

    def _summarise(self, tuned: Sequence[Arm], warnings: Sequence[str], failed: Sequence[RunProgress]) -> StudySummary:
        seeds = self._seeds(tuned, self.config.seeds)
        runs = {arm.name: {seed: self._run_of(arm, seed) for seed in seeds} for arm in tuned}
        compared = {run.name: run for seeds in runs.values() for run in seeds.values()}
        once = compared | {run.name: run for run in self._all_tuning_runs()}
        ended = {name: left for name, run in once.items() if (left := self._ended(run))}
        reasons = {progress.run.label: str(progress.failed) for progress in (*self._damaged.values(), *failed)}
        lines = [f"\n  {label}: failed: {why}" for label, why in reasons.items()]
        if len(tuned) < len(self.arms):
            raise UserError(f"{self.folder}: tuning is not over; `archlab study run` goes on with it{''.join(lines)}")
        if not compared.keys() & ended:
            if reasons:
                raise UserError(f"{self.folder}: no run finished{''.join(lines)}")
            raise UserError(f"{self.folder}: no finished run; `archlab study run` makes them")
        if (planned := read_plan(self.folder)) is not None:
            warnings = [*warnings, *added_later(len(self._seeds(tuned, planned)), len(seeds))]
        corpus = "; ".join(dict.fromkeys(record.description for record in self.corpora.values()))
        summary = summarise(self.name, self.config, tuned, runs, ended, self.folder, corpus, reasons, warnings)
        write_summary(self.folder, summary)
        return summary


def _old_summary(folder: Path) -> StudySummary:
    """The summary that the folder holds, with a note that its runs are not there."""
    summary = read_summary(folder)
    note = "its runs are not here, or read other tokens, or in another number format; this is their old summary"
    return summary.model_copy(update={"warnings": [*summary.warnings, note]})


def _compiled_alike(designed: Sequence[Arm]) -> list[Arm]:
    """With `train.compile: auto` decided once for all arms: compiled only where all would be. Compiled layers round
    otherwise and are faster, and neither is what a study compares."""
    every = all(is_compiled(a.config, resolve_train(a.config), choose_device(a.config.train)) for a in designed)
    return [arm.compiled(every) if arm.config.train.compile == "auto" else arm for arm in designed]


def _small_on_cpu(designed: Sequence[Arm]) -> bool:
    """Whether one process with one thread per core is fastest; else runs go one by one, with all of the machine."""
    on_cpu = choose_device(designed[0].config.train).type == "cpu"
    return on_cpu and all(parameters(arm.config.model).total < SIDE_BY_SIDE_BELOW for arm in designed)
