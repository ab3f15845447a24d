"""Runs as jobs of Slurm, one for each, handed out as arrays by submitit."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias
from uuid import uuid4

from archlab.config.core.yaml_text import parse_yaml
from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.interrupt import interrupts_blocked
from archlab.study.executors.elsewhere import BrokenError, LostError, run_elsewhere
from archlab.study.executors.executor import Errand, OnProgress, RunNeeds, RunProgress, needs_of
from archlab.study.runs import Run

Job: TypeAlias = Any
"""A submitit.Job."""

FOLDER = "slurm"
"""Name of a folder in a study's folder: scripts of jobs and logs of those that failed, in a folder for each command.

submitit reads the results of jobs there by pickle, so nobody may know the folder's name before it is made.
"""

OPTIONS = (
    "account", "array_parallelism", "cluster", "comment", "constraint", "exclude", "exclusive", "gres", "mail_type",
    "mail_user", "nodelist", "partition", "qos", "setup", "signal_delay_s", "time",
)  # fmt: skip
"""What `--slurm` takes: sbatch's options as submitit calls them; `cluster` is slurm, or local for a try without one."""

_MINUTES = 60
"""Of a job, where nothing is said; one that is not done then is queued again, and goes on."""

_REQUEUES = 1000
"""After which a run that needs more than its time is given up."""

_ARRAY = 1000
"""Jobs of an array; Slurm's own limit (MaxArraySize) is 1001 where nothing is said."""

_PAUSES = (0, 10, 60, 300)
"""Seconds before each try to submit."""


@dataclass(frozen=True)
class Slurm:
    """As many jobs at once as Slurm has room for, or as many as are asked for."""

    workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `OPTIONS`."""

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        """Train every run; see `Executor`."""
        if not runs:
            return []
        place = _Queue(Errand.of(study), needs_of(runs), self.options)
        return run_elsewhere(place, runs, study, self.workers, on_progress)


def slurm_options(texts: Sequence[str]) -> dict[str, Any]:
    """From `partition=gpu`, `time=120`; UserError for what is no option."""
    found = dict[str, Any]()
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in OPTIONS:
            raise UserError(f"--slurm: {text!r}{choose(key, OPTIONS)}, as in partition=gpu time=120")
        if not equals or key in found:
            what = "is given twice" if key in found else "has no value"
            raise UserError(f"--slurm: {key} {what}; allowed: each once, as in partition=gpu time=120")
        found[key] = [value] if key == "setup" else parse_yaml(value, f"--slurm {key}")
    if found.get("cluster", "slurm") not in ("slurm", "local"):
        raise UserError(f"--slurm cluster: {found['cluster']!r}; allowed: slurm, local")
    if not isinstance(minutes := found.get("time", _MINUTES), int) or minutes < 1:
        raise UserError(f"--slurm time: {minutes!r}; allowed: minutes, at least 1")
    return found


def check_slurm(options: Mapping[str, Any]) -> None:
    """UserError where jobs cannot be submitted from here."""
    _submitit()
    if options.get("cluster") != "local" and shutil.which("sbatch") is None:
        raise UserError("--executor slurm: no sbatch on this machine; run it where jobs of Slurm are submitted")


class _Queue:
    """Slurm's; with `cluster: local` submitit's own, on this machine."""

    def __init__(self, errand: Errand, wanted: RunNeeds, options: Mapping[str, Any]) -> None:
        self._submitit, self._errand, self._wanted, self._options = _submitit(), errand, wanted, options
        self._is_local = options.get("cluster") == "local"
        self.retry_after = 1.0 if self._is_local else 30.0
        self._has_begun = False

    @cached_property
    def _executor(self) -> Any:
        wanted, options = self._wanted, {"cluster": "slurm", "time": _MINUTES, **self._options}
        made = self._submitit.AutoExecutor(
            folder=self._errand.study / FOLDER / uuid4().hex[:12],
            cluster=options.pop("cluster"),
            slurm_max_num_timeout=_REQUEUES,
        )
        made.update_parameters(
            name="archlab", timeout_min=options.pop("time"), cpus_per_task=wanted.cores, nodes=1,
            tasks_per_node=1, gpus_per_node=wanted.gpus or None, mem_gb=-(-wanted.memory // 2**30),
            **{f"slurm_{key}": value for key, value in options.items()},
        )  # fmt: skip
        return made

    def start(self, runs: Sequence[Run]) -> list[Job]:
        """Arrays of jobs; UserError where Slurm takes none."""
        jobs = list[Job]()
        try:
            for i in range(0, len(runs), _ARRAY):
                self._submit(runs[i : i + _ARRAY], jobs)
        except BaseException:  # else nobody would know of those that were taken
            self.stop(jobs)
            raise
        return jobs

    def _submit(self, runs: Sequence[Run], jobs: list[Job]) -> None:
        """An array, added to `jobs`. That Slurm does not answer for a while ends no study whose jobs are at work."""
        why = ""
        for pause in _PAUSES if self._has_begun else (0,):
            time.sleep(pause)
            try:
                with interrupts_blocked():  # for jobs of this machine, which a Ctrl-C would reach too
                    jobs += self._executor.map_array(_Trained(self._errand), runs)
            except (self._submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
                why = str(error).strip().splitlines()[-1]
            else:
                self._has_begun = True
                return
        raise UserError(f"--executor slurm: sbatch takes no jobs: {why}")

    def ended(self, tasks: Sequence[Job], seconds: float) -> list[Job]:
        """By the file that a job leaves, or as Slurm tells."""
        end = time.monotonic() + seconds
        while not (done := [job for job in tasks if job.done()]) and time.monotonic() < end:
            time.sleep(0.1 if self._is_local else 1.0)
        return done

    def result(self, task: Job) -> list[RunProgress]:
        """LostError where there is no result; a job that has told how its run ended leaves nothing behind."""
        if not task.paths.result_pickle.exists():
            raise LostError(f"job {task.job_id}: {task.state.lower()}")
        try:
            told = task.result()
        except self._submitit.core.utils.FailedJobError as error:
            raise BrokenError(f"job {task.job_id} failed: {str(error).strip().splitlines()[-1]}") from error
        if told[-1].failed is None:
            for file in task.paths.folder.glob(f"{task.job_id}_*"):
                file.unlink(missing_ok=True)
        return told

    def stop(self, tasks: Sequence[Job]) -> None:
        """By SIGTERM. Only jobs of this machine are waited for; a cluster's have Slurm's KillWait to save in (30
        seconds where nothing is said)."""
        for task in tasks:
            if self._is_local:  # whose own way to cancel leaves a run no time for a checkpoint
                with suppress(ProcessLookupError):
                    os.kill(int(task.job_id), signal.SIGTERM)
            else:
                task.cancel(check=False)
        while self._is_local and not all(task.done() for task in tasks):
            time.sleep(0.05)

    def kill(self, tasks: Sequence[Job]) -> None:
        """As `stop`, without waiting."""
        for task in tasks:
            task.cancel(check=False)


@dataclass
class _Trained:
    """What a job does."""

    errand: Errand
    leaves: bool = False
    """Whether the machine wants its place back, or the job's time is over: the run goes on in another job."""

    def __call__(self, run: Run) -> list[RunProgress]:
        """Train the run. Told to leave (SIGUSR2), or cancelled (SIGTERM), it ends after its step with a checkpoint;
        submitit then queues a job again that has left."""
        requeue = signal.signal(signal.SIGUSR2, self._leave)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a training takes it as a wish to end
        try:
            return self.errand(run)
        except KeyboardInterrupt:
            if self.leaves and callable(requeue):
                self.leaves = False  # of the job that goes on
                requeue(signal.SIGUSR2, None)
            raise

    def checkpoint(self, run: Run) -> Any:
        """With what the job begins again; the run's folder knows the rest."""
        return _submitit().helpers.DelayedSubmission(self, run)

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        self.leaves = True
        signal.raise_signal(signal.SIGTERM)


def _submitit() -> Any:
    """The module; UserError where it is not installed."""
    try:
        import submitit
    except ImportError:
        raise UserError("--executor slurm needs submitit; run: pip install 'archlab[slurm]'") from None
    return submitit
