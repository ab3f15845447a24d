"""Tracking tools (`train.log`), to which the metrics of a run are copied during training."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from archlab.config.core.yaml_text import to_yaml
from archlab.config.identity import flatten, resolved
from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config, LogTo
from archlab.digests import write_with_digests
from archlab.extras import install
from archlab.files import read_bytes, real_path

Metrics = Mapping[str, float]
"""Numbers of a step by name."""
PROJECT = "archlab"
"""Default project name in the tools. Each tool's own environment variables override it."""

_ID = "log.json"
_MLFLOW_TAG = "archlab.id"
_MLFLOW_BATCH = 100

_MLFLOW_LONGEST = 500


class Sink(Protocol):
    """Interface of a tracking tool that is open for one run. Exceptions end the copying, not the training."""

    def begin(self, step: int) -> None:
        """Prepare for metrics of `step` and later steps, even if they were logged before.

        `step` is 0 at the start of a run. It is larger if the run resumes or goes back to a checkpoint.
        """
        ...

    def log(self, step: int, metrics: Metrics) -> None:
        """Log metrics of a step. Several calls may be made for the same step."""
        ...

    def close(self, *, ended: bool) -> None:
        """Close the tool. `ended` is true if training reached its end, and false if it was stopped."""
        ...


@dataclass(frozen=True)
class LoggedRun:
    """Description of a run that a tool receives when it is opened."""

    folder: Path
    id: str
    """Unique id of the run, which stays the same when the run resumes."""
    values: Mapping[str, Any]
    """Config of the run, including derived values, and its environment."""

    @property
    def name(self) -> str:
        """Name for users: the folder's name and part of the id, which distinguishes runs whose folders share a name."""
        return f"{real_path(self.folder).name}-{self.id[:4]}"


class Copies:
    """Tools to which metrics are copied. A tool that fails receives nothing more, and training continues."""

    def __init__(self, sinks: Mapping[str, Sink], on_failure: Callable[[str], None] = lambda _: None) -> None:
        """`sinks` maps names to tools. `on_failure` receives a message for each tool that fails."""
        self._sinks, self._on_failure = dict(sinks), on_failure

    def begin(self, step: int) -> None:
        self._each(lambda sink: sink.begin(step))

    def log(self, line: Mapping[str, Any]) -> None:
        """Log the numbers of a line of metrics. Other values are left out."""
        metrics = dict(numbers({name: value for name, value in line.items() if name != "step"}))
        self._each(lambda sink: sink.log(line["step"], metrics))

    def close(self, *, ended: bool) -> None:
        self._each(lambda sink: sink.close(ended=ended))

    def _each(self, call: Callable[[Sink], None]) -> None:
        for name, sink in [*self._sinks.items()]:
            try:
                call(sink)
            except Exception as error:
                del self._sinks[name]
                self._on_failure(failure(name, error))


def failure(name: str, error: Exception) -> str:
    why = (str(error).strip().splitlines() or [""])[0]
    return f"train.log: {name} has failed ({type(error).__name__}: {why}); metrics.jsonl still receives all metrics"


def numbers(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number in a line of metrics.

    Numbers inside a probe get a path as name: `probes/entropy/3` is the entropy of the third layer.
    """
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{at}{name}/")
        elif isinstance(value, list):
            yield from numbers({str(i): x for i, x in enumerate(value, 1)}, f"{at}{name}/")
        elif isinstance(value, int | float):
            yield f"{at}{name}", float(value)


class TensorBoard:
    """TensorBoard. Event files are in the run's folder, so that `tensorboard --logdir runs` compares runs."""

    def __init__(self, tensorboardx: Any, run: LoggedRun) -> None:
        self._library, self._run, self._writer = tensorboardx, run, None

    def begin(self, step: int) -> None:
        """Begin a new event file. TensorBoard then hides this step and later steps of older files."""
        if self._writer is not None:
            self._writer.close()
        folder = self._run.folder / "tensorboard"
        before = len(list(folder.glob("*")))  # files that begin in the same second would have the same name
        self._writer = self._library.SummaryWriter(str(folder), purge_step=step, filename_suffix=f".{before:05}")
        if step == 0:
            self._writer.add_text("config", f"```\n{to_yaml(dict(self._run.values))}```", 0)

    def log(self, step: int, metrics: Metrics) -> None:
        assert self._writer is not None
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, ended: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB:
    """Weights & Biases. WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline have their usual meaning.

    The wandb run has the id of archlab's run. `step` is logged as a separate x axis: wandb drops values of earlier
    steps, and a run that went back logs steps twice.
    """

    def __init__(self, wandb: Any, run: LoggedRun) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            resume="allow",
            config=dict(run.values),
            dir=str(run.folder),
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def begin(self, step: int) -> None: ...

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log({"step": step, **metrics})

    def close(self, *, ended: bool) -> None:
        """Wait until everything is sent. A stopped run is marked as crashed until it resumes."""
        self._run.finish(exit_code=0 if ended else 1)


class Trackio:
    """Trackio: a local database, or a Space on the Hugging Face hub if TRACKIO_SPACE_ID names one.

    The Trackio run has the name of archlab's run. Trackio's messages go to stderr, because stdout is for results.
    """

    def __init__(self, trackio: Any, run: LoggedRun) -> None:
        self._library = trackio
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=run.name,
                config=dict(run.values),
                resume="allow",
                embed=False,
            )

    def begin(self, step: int) -> None: ...

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, *, ended: bool) -> None:
        """Wait until everything is written."""
        with redirect_stdout(sys.stderr):
            self._library.finish()  # now, so that nothing remains to be done when the process ends


class MLflow:
    """MLflow. MLFLOW_TRACKING_URI names the server or store, and MLFLOW_EXPERIMENT_NAME the experiment.

    A tag of the MLflow run contains the id of archlab's run.
    """

    def __init__(self, mlflow: Any, run: LoggedRun) -> None:
        self._client, self._entities, self._sent = mlflow.MlflowClient(), mlflow.entities, None
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        begun = self._client.search_runs([experiment], f"tags.`{_MLFLOW_TAG}` = '{run.id}'", max_results=1)
        self._id = begun[0].info.run_id if begun else self._created(run, experiment)
        self._client.update_run(self._id, "RUNNING")

    def _created(self, run: LoggedRun, experiment: str) -> str:
        id = self._client.create_run(experiment, tags={_MLFLOW_TAG: run.id}, run_name=run.name).info.run_id
        params = [
            self._entities.Param(name, str(value)[:_MLFLOW_LONGEST])
            for name, value in flatten(dict(run.values)).items()
        ]
        for i in range(0, len(params), _MLFLOW_BATCH):
            self._client.log_batch(id, params=params[i : i + _MLFLOW_BATCH])
        return id

    def begin(self, step: int) -> None: ...

    def log(self, step: int, metrics: Metrics) -> None:
        """Send metrics in one of MLflow's threads, so that a slow server does not delay training."""
        now = int(time.time() * 1000)
        sent = [self._entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._sent = self._client.log_batch(self._id, metrics=sent, synchronous=False)

    def close(self, *, ended: bool) -> None:
        """Wait until everything is sent."""
        if self._sent is not None:
            self._sent.wait()
        self._client.set_terminated(self._id, "FINISHED" if ended else "KILLED")


SINKS: dict[LogTo, tuple[str, Callable[[Any, LoggedRun], Sink]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "wandb": ("wandb", WandB),
    "trackio": ("trackio", Trackio),
    "mlflow": ("mlflow", MLflow),
}
"""Package and class of each tool, by the name of the tool. The pip extra that installs the package has the same name.

The constructor of the class receives the imported package.
"""


def check_installed(log: Sequence[LogTo]) -> None:
    """Raise ConfigError if the package of a tool is not installed."""
    missing = [name for name in log if find_spec(SINKS[name][0]) is None]
    if missing:
        message = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError([Problem("train.log", f"{message}; run: {install(*missing)}")], "the config")


@contextmanager
def opened(
    folder: Path, config: Config, environment: Mapping[str, Any], on_failure: Callable[[str], None]
) -> Iterator[Copies]:
    """Open the tools that the run's config names, and close them after the block.

    A tool that cannot be opened is left out, and `on_failure` receives the reason.
    """
    sinks = dict[str, Sink]()
    for name in config.train.log:
        package, tool = SINKS[name]
        try:
            run = LoggedRun(folder, _id(folder), {**resolved(config), "environment": environment})
            sinks[name] = tool(import_module(package), run)
        except Exception as error:
            on_failure(failure(name, error))
    copies = Copies(sinks, on_failure)
    ended = False
    try:
        yield copies
        ended = True
    finally:
        copies.close(ended=ended)


def _id(folder: Path) -> str:
    path = folder / _ID
    if not path.exists():
        write_with_digests(folder, {_ID: json.dumps({"id": secrets.token_hex(4)})})
    return json.loads(read_bytes(path))["id"]
