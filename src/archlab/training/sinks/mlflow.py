"""MLflow: the server or the store that MLFLOW_TRACKING_URI names, the experiment of MLFLOW_EXPERIMENT_NAME."""

import os
import time
from typing import Any

from archlab.config.identity import flatten
from archlab.training.sinks.sink import PROJECT, LoggedRun, Measures

_TAG = "archlab.id"
_MOST = 100
"""Parameters that one request may have."""

_LONGEST = 500
"""Characters of a parameter that every store takes."""


class MLflow:
    """The run with our id among its tags."""

    def __init__(self, mlflow: Any, run: LoggedRun) -> None:
        self._client, self._entities, self._sent = mlflow.MlflowClient(), mlflow.entities, None
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        begun = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        self._id = begun[0].info.run_id if begun else self._created(run, experiment)
        self._client.update_run(self._id, "RUNNING")

    def _created(self, run: LoggedRun, experiment: str) -> str:
        id = self._client.create_run(experiment, tags={_TAG: run.id}, run_name=run.name).info.run_id
        params = [
            self._entities.Param(name, str(value)[:_LONGEST]) for name, value in flatten(dict(run.values)).items()
        ]
        for i in range(0, len(params), _MOST):
            self._client.log_batch(id, params=params[i : i + _MOST])
        return id

    def begin(self, step: int) -> None:
        """Steps that come again are drawn again."""

    def log(self, step: int, measures: Measures) -> None:
        """Sent by a thread of MLflow's, so that a slow server delays no step."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in measures.items()]
        self._sent = self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def close(self, *, ended: bool) -> None:
        """Wait until all is sent."""
        if self._sent is not None:
            self._sent.wait()
        self._client.set_terminated(self._id, "FINISHED" if ended else "KILLED")
