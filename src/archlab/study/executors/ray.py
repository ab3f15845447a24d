"""Runs on a Ray cluster: the one that `ray start` has begun, or a new one on this machine."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from archlab.errors import UserError
from archlab.interrupt import interrupts_blocked
from archlab.study.executors.elsewhere import BrokenError, LostError, run_elsewhere
from archlab.study.executors.executor import Errand, OnProgress, RunNeeds, RunProgress, needs_of
from archlab.study.runs import Run

Reference: TypeAlias = Any
"""ray.ObjectRef of a task's result."""

_PASSED_ON = (
    "ARCHLAB_CACHE", "ARCHLAB_STATE", "ARCHLAB_TRUST", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI", "TRACKIO_DIR",
    "TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT",
)  # fmt: skip
"""Variables of this process that its tasks are to have too; a cluster's machines have their own. Those of the tools of
train.log are in docs/watching.md."""


@dataclass(frozen=True)
class Ray:
    """As many runs at once as the cluster has room for, or as many as are asked for."""

    workers: int | None = None

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        """Train every run; see `Executor`."""
        if not runs:
            return []
        place = _Cluster(Errand.of(study), needs_of(runs))
        if (lacking := place.lacking()) is not None:
            on_progress(RunProgress(runs[0], 0.0, note=lacking))
        return run_elsewhere(place, runs, study, self.workers, on_progress)


class _Cluster:
    """Ray's, with one task for each run."""

    retry_after = 1.0

    def __init__(self, errand: Errand, wanted: RunNeeds) -> None:
        self._ray, self._wanted = _connected(), wanted
        self._errand = errand

    @cached_property
    def _task(self) -> Any:
        """Not tried again by Ray, for what is lost is counted here, as on any other place."""
        wanted = self._wanted
        return self._ray.remote(_train).options(
            num_cpus=wanted.cores, num_gpus=wanted.gpus, memory=wanted.memory, max_retries=0, name="archlab run"
        )

    def lacking(self) -> str | None:
        """A note where no machine has what a run needs."""
        wanted = {"CPU": self._wanted.cores, "GPU": self._wanted.gpus, "memory": self._wanted.memory}
        nodes: list[Mapping[str, float]] = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= n for name, n in wanted.items()) for node in nodes):
            return None
        return f"a run needs {self._wanted}, and no machine of the Ray cluster has so much; it is waited for"

    def start(self, runs: Sequence[Run]) -> list[Reference]:
        """Submitted; Ray places each where there is room."""
        return [self._task.remote(self._errand, run) for run in runs]

    def ended(self, tasks: Sequence[Reference], seconds: float) -> list[Reference]:
        """As Ray tells."""
        return self._ray.wait(list(tasks), num_returns=1, timeout=seconds)[0]

    def result(self, task: Reference) -> list[RunProgress]:
        """LostError where the worker or its machine is gone."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.TaskCancelledError:
            raise LostError("cancelled") from None
        except errors.RayTaskError as error:  # a bug, or archlab is not installed there
            raise BrokenError(f"its task failed: {str(error).strip().splitlines()[-1]}") from error
        except errors.RayError as error:
            raise LostError(type(error).__name__) from None

    def stop(self, tasks: Sequence[Reference]) -> None:
        """Each gets a KeyboardInterrupt, which a training takes as a wish to end after its step."""
        for task in tasks:
            self._ray.cancel(task, force=False)
        self._ray.wait(list(tasks), num_returns=len(tasks))

    def kill(self, tasks: Sequence[Reference]) -> None:
        """Their processes."""
        for task in tasks:
            self._ray.cancel(task, force=True)


def _train(errand: Errand, run: Run) -> list[RunProgress]:
    """What a worker of the cluster does."""
    return errand(run)


def installed_ray() -> Any:
    """The module; UserError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody else is told of a study
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray; run: pip install 'archlab[ray]'") from None
    return ray


def _check_answers(address: str) -> None:
    """UserError where nothing listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        why = f"no Ray cluster answers at {address} (RAY_ADDRESS): {error.strerror or error}"
        raise UserError(f"--executor ray: {why}; start one there, or unset RAY_ADDRESS") from None


def _connected() -> Any:
    """The module, connected to a cluster; to a new one on this machine where none is found."""
    ray = installed_ray()
    if not ray.is_initialized():
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        options: dict[str, Any] = {
            "log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": passed_on}
        }  # fmt: skip
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        with interrupts_blocked():
            try:
                ray.init(address="auto", **options)
            except ConnectionError:
                ray.init(include_dashboard=False, **options)
    return ray
