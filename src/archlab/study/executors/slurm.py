"""Train runs as Slurm jobs, one per run. submitit submits them as job arrays."""

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
from archlab.extras import needs_extra
from archlab.interrupt import interrupts_blocked
from archlab.study.executors.elsewhere import BrokenError, LostError, run_elsewhere
from archlab.study.executors.executor import Errand, OnProgress, RunNeeds, RunProgress, needs_of
from archlab.study.runs import Run

Job: TypeAlias = Any
"""A `submitit.Job`."""

FOLDER = "slurm"
"""Name of the folder for Slurm's files in a study's folder. Each `archlab study run` adds a subfolder with job scripts
and the logs of failed jobs. The subfolder has a random name: submitit unpickles results from it, so nobody should be
able to put a file there in advance."""

OPTIONS = (
    "account", "array_parallelism", "cluster", "comment", "constraint", "exclude", "exclusive", "gres", "mail_type",
    "mail_user", "nodelist", "partition", "qos", "setup", "signal_delay_s", "time",
)  # fmt: skip
"""Allowed keys of `--slurm`: options of sbatch, under the names that submitit uses. `cluster` is `slurm`, or `local` to
run the jobs on this machine without a cluster."""

_DEFAULT_MINUTES = 60
"""Default time limit of a job, in minutes. A job that needs more time is requeued and continues from its checkpoint."""

_REQUEUES = 1000
"""Largest number of times that a job is requeued because it reached its time limit."""

_ARRAY = 1000
"""Largest number of jobs in one job array. Slurm's default limit (MaxArraySize) is 1001."""

_PAUSES = (0, 10, 60, 300)
"""Seconds to wait before each attempt to submit jobs."""


@dataclass(frozen=True)
class Slurm:
    """Executor on Slurm. `workers` is the number of jobs that run at the same time; by default, as many as fit on the
    cluster."""

    workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys in `OPTIONS`. Every key may be left out."""

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        if not runs:
            return []
        place = _Queue(Errand.of(study), needs_of(runs), self.options)
        return run_elsewhere(place, runs, study, self.workers, on_progress)


def slurm_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse options such as `partition=gpu` and `time=120`. Raise UserError for an unknown option or an invalid
    value."""
    options = dict[str, Any]()
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in OPTIONS:
            raise UserError(f"slurm: unknown option {key!r}{choose(key, OPTIONS)}; for example: partition=gpu time=120")
        if not equals or key in options:
            problem = "has two values" if key in options else "has no value"
            raise UserError(f"slurm: {key} {problem}; give each option once, for example partition=gpu time=120")
        options[key] = [value] if key == "setup" else parse_yaml(value, f"slurm: {key}")
    if options.get("cluster", "slurm") not in ("slurm", "local"):
        raise UserError(f"slurm: cluster is {options['cluster']!r}; allowed: slurm, local")
    if not isinstance(minutes := options.get("time", _DEFAULT_MINUTES), int) or minutes < 1:
        raise UserError(f"slurm: time is {minutes!r}; allowed: a number of minutes, at least 1")
    return options


def check_slurm(options: Mapping[str, Any]) -> None:
    """Raise UserError if jobs cannot be submitted from this machine."""
    _submitit()
    if options.get("cluster") != "local" and shutil.which("sbatch") is None:
        raise UserError("executor slurm: could not find sbatch; run the command on a machine that submits Slurm jobs")


class _Queue:
    """A Slurm queue as a `Place`. With `cluster: local`, submitit runs the jobs on this machine."""

    def __init__(self, errand: Errand, needed: RunNeeds, options: Mapping[str, Any]) -> None:
        self._submitit, self._errand, self._needed, self._options = _submitit(), errand, needed, options
        self._is_local = options.get("cluster") == "local"
        self.retry_after = 1.0 if self._is_local else 30.0
        self._has_begun = False

    @cached_property
    def _executor(self) -> Any:
        needed, options = self._needed, {"cluster": "slurm", "time": _DEFAULT_MINUTES, **self._options}
        executor = self._submitit.AutoExecutor(
            folder=self._errand.study / FOLDER / uuid4().hex[:12],
            cluster=options.pop("cluster"),
            slurm_max_num_timeout=_REQUEUES,
        )
        executor.update_parameters(
            name="archlab", timeout_min=options.pop("time"), cpus_per_task=needed.cores, nodes=1,
            tasks_per_node=1, gpus_per_node=needed.gpus or None, mem_gb=-(-needed.memory // 2**30),
            **{f"slurm_{key}": value for key, value in options.items()},
        )  # fmt: skip
        return executor

    def start(self, runs: Sequence[Run]) -> list[Job]:
        """Submit the runs as job arrays. If Slurm refuses an array, stop the jobs that were already submitted, and
        raise UserError."""
        jobs = list[Job]()
        try:
            for i in range(0, len(runs), _ARRAY):
                self._submit(runs[i : i + _ARRAY], jobs)
        except BaseException:  # otherwise jobs that were already submitted would be forgotten
            self.stop(jobs)
            raise
        return jobs

    def _submit(self, runs: Sequence[Run], jobs: list[Job]) -> None:
        """Submit a job array, and add its jobs to `jobs`. Once Slurm has accepted an array, a later refusal may be
        temporary. Then try again after each pause in `_PAUSES`."""
        why = ""
        for pause in _PAUSES if self._has_begun else (0,):
            time.sleep(pause)
            try:
                with interrupts_blocked():  # Ctrl-C would also reach jobs on this machine
                    jobs += self._executor.map_array(_TrainRun(self._errand), runs)
            except (self._submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
                why = str(error).strip().splitlines()[-1]
            else:
                self._has_begun = True
                return
        raise UserError(f"executor slurm: sbatch refused the jobs: {why}")

    def ended(self, tasks: Sequence[Job], seconds: float) -> list[Job]:
        """Return the jobs that have written their result file, or that have ended according to Slurm."""
        end = time.monotonic() + seconds
        while not (done := [job for job in tasks if job.done()]) and time.monotonic() < end:
            time.sleep(0.1 if self._is_local else 1.0)
        return done

    def result(self, task: Job) -> list[RunProgress]:
        """Return the messages of a job. Delete the job's files unless its run failed. Raise LostError if the job has no
        result."""
        if not task.paths.result_pickle.exists():
            raise LostError(f"job {task.job_id}: {task.state.lower()}")
        try:
            messages = task.result()
        except self._submitit.core.utils.FailedJobError as error:
            raise BrokenError(f"job {task.job_id} failed: {str(error).strip().splitlines()[-1]}") from error
        if messages[-1].failed is None:
            for file in task.paths.folder.glob(f"{task.job_id}_*"):
                file.unlink(missing_ok=True)
        return messages

    def stop(self, tasks: Sequence[Job]) -> None:
        """Stop the jobs with SIGTERM, so that they save checkpoints.

        Wait for the jobs only if they run on this machine. On a cluster, a job has the time of Slurm's KillWait setting
        (30 seconds by default) to save its checkpoint.
        """
        for task in tasks:
            if self._is_local:  # submitit's way to cancel leaves no time for a checkpoint
                with suppress(ProcessLookupError):
                    os.kill(int(task.job_id), signal.SIGTERM)
            else:
                task.cancel(check=False)
        while self._is_local and not all(task.done() for task in tasks):
            time.sleep(0.05)

    def kill(self, tasks: Sequence[Job]) -> None:
        for task in tasks:
            task.cancel(check=False)


@dataclass
class _TrainRun:
    """Function that a job calls to train a run."""

    errand: Errand
    leaves: bool = False
    """Whether the job must leave its machine, for example because it has reached its time limit. The run then continues
    in another job."""

    def __call__(self, run: Run) -> list[RunProgress]:
        """Train the run.

        Slurm sends SIGUSR2 if the job must leave its machine, and SIGTERM if the job is canceled. After either signal,
        the run saves a checkpoint at the end of the current step and stops. submitit requeues a job that had to leave.
        """
        requeue = signal.signal(signal.SIGUSR2, self._leave)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends a training after its step
        try:
            return self.errand(run)
        except KeyboardInterrupt:
            if self.leaves and callable(requeue):
                self.leaves = False  # for the job that continues
                requeue(signal.SIGUSR2, None)
            raise

    def checkpoint(self, run: Run) -> Any:
        """Return the call that submitit makes in the requeued job. It continues the run from the checkpoint in the
        run's folder."""
        return _submitit().helpers.DelayedSubmission(self, run)

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        self.leaves = True
        signal.raise_signal(signal.SIGTERM)


def _submitit() -> Any:
    with needs_extra("slurm", "executor slurm"):
        import submitit
    return submitit
