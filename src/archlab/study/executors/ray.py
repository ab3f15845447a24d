"""Train runs on a Ray cluster: the cluster that `ray start` has started or, if there is none, a new one on this
machine."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from archlab.errors import UserError
from archlab.extras import needs_extra
from archlab.interrupt import interrupts_blocked
from archlab.study.executors.elsewhere import BrokenError, LostError, run_elsewhere
from archlab.study.executors.executor import Errand, OnProgress, RunNeeds, RunProgress, needs_of
from archlab.study.runs import Run

Reference: TypeAlias = Any
"""A `ray.ObjectRef`, which refers to the result of a task."""

_INHERITED = (
    "ARCHLAB_CACHE", "ARCHLAB_STATE", "ARCHLAB_TRUST", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI", "TRACKIO_DIR",
    "TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT",
)  # fmt: skip
"""Environment variables that are passed from this process to all tasks. docs/watching.md explains those of wandb,
mlflow and trackio."""


@dataclass(frozen=True)
class Ray:
    """Executor on a Ray cluster. `workers` is the number of runs that train at the same time; by default, as many as
    fit on the cluster."""

    workers: int | None = None

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        if not runs:
            return []
        place = _Cluster(Errand.of(study), needs_of(runs))
        if (missing_resources := place.missing_resources()) is not None:
            on_progress(RunProgress(runs[0], 0.0, note=missing_resources))
        return run_elsewhere(place, runs, study, self.workers, on_progress)


class _Cluster:
    """A Ray cluster as a `Place`, with one task per run."""

    retry_after = 1.0

    def __init__(self, errand: Errand, needed: RunNeeds) -> None:
        self._ray, self._needed = _connected(), needed
        self._errand = errand

    @cached_property
    def _task(self) -> Any:
        """Return `_train` as a Ray remote function. Ray does not retry a task, because `run_elsewhere` submits lost
        tasks again."""
        needed = self._needed
        return self._ray.remote(_train).options(
            num_cpus=needed.cores, num_gpus=needed.gpus, memory=needed.memory, max_retries=0, name="archlab run"
        )

    def missing_resources(self) -> str | None:
        """Return a note if no machine of the cluster has the resources that a run needs."""
        needed = {"CPU": self._needed.cores, "GPU": self._needed.gpus, "memory": self._needed.memory}
        nodes: list[Mapping[str, float]] = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= n for name, n in needed.items()) for node in nodes):
            return None
        return f"a run needs {self._needed}, but no machine of the Ray cluster has enough; waiting for a machine"

    def start(self, runs: Sequence[Run]) -> list[Reference]:
        """Submit the runs. Ray chooses the machines."""
        return [self._task.remote(self._errand, run) for run in runs]

    def ended(self, tasks: Sequence[Reference], seconds: float) -> list[Reference]:
        return self._ray.wait(list(tasks), num_returns=1, timeout=seconds)[0]

    def result(self, task: Reference) -> list[RunProgress]:
        """Return the messages of a task. Raise LostError if the worker or its machine is gone."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.TaskCancelledError:
            raise LostError("canceled") from None
        except errors.RayTaskError as error:  # a bug, or archlab is not installed there
            raise BrokenError(f"its task failed: {str(error).strip().splitlines()[-1]}") from error
        except errors.RayError as error:
            raise LostError(type(error).__name__) from None

    def stop(self, tasks: Sequence[Reference]) -> None:
        """Send each task a KeyboardInterrupt, so that its training ends after the current step."""
        for task in tasks:
            self._ray.cancel(task, force=False)
        self._ray.wait(list(tasks), num_returns=len(tasks))

    def kill(self, tasks: Sequence[Reference]) -> None:
        for task in tasks:
            self._ray.cancel(task, force=True)


def _train(errand: Errand, run: Run) -> list[RunProgress]:
    return errand(run)


def installed_ray() -> Any:
    """Import and return the ray module. Raise UserError if Ray is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
    with needs_extra("ray", "executor ray"):
        import ray
    return ray


def _check_answers(address: str) -> None:
    """Raise UserError if nothing listens at the address. Without this check, Ray would try to connect for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        why = f"no Ray cluster answers at {address} (RAY_ADDRESS): {error.strerror or error}"
        raise UserError(f"executor ray: {why}; start one there, or unset RAY_ADDRESS") from None


def _connected() -> Any:
    """Return the ray module, connected to a cluster. If no cluster is running, start one on this machine."""
    ray = installed_ray()
    if not ray.is_initialized():
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        options: dict[str, Any] = {
            "log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": inherited}
        }  # fmt: skip
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        with interrupts_blocked():
            try:
                ray.init(address="auto", **options)
            except ConnectionError:
                ray.init(include_dashboard=False, **options)
    return ray
