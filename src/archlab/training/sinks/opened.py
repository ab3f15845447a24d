"""The tools that a run's config names, open while it trains."""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from archlab.config.identity import resolved
from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config, LogTo
from archlab.digests import write_with_digests
from archlab.files import read_bytes
from archlab.training.run_folder import RunFolder
from archlab.training.sinks.copies import Copies, failure
from archlab.training.sinks.sink import LoggedRun, Sink

SINKS: dict[LogTo, tuple[str, str]] = {
    "tensorboard": ("tensorboardX", "TensorBoard"),
    "wandb": ("wandb", "WandB"),
    "trackio": ("trackio", "Trackio"),
    "mlflow": ("mlflow", "MLflow"),
}
"""Name, which is that of its file here and of its extra -> the package that it needs, and its class, which is
given that package."""

_ID = "log.json"


def check_installed(log: Sequence[LogTo]) -> None:
    """ConfigError where one of their packages is missing."""
    missing = [name for name in log if find_spec(SINKS[name][0]) is None]
    if missing:
        found = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError(
            [Problem("train.log", f"{found}; run: pip install 'archlab[{','.join(missing)}]'")], "the config"
        )


@contextmanager
def opened(folder: RunFolder, config: Config, on_failure: Callable[[str], None]) -> Iterator[None]:
    """Within the block they are told what is logged in the folder. One that cannot be opened is left out, with a
    note."""
    sinks = dict[str, Sink]()
    values = {**resolved(config), "environment": folder.environment()}
    for name in config.train.log:
        try:
            sinks[name] = _open(name, LoggedRun(folder.path, _id(folder.path), values))
        except Exception as error:
            on_failure(failure(name, error))
    folder.copies = Copies(sinks, on_failure)
    ended = False
    try:
        yield
        ended = True
    finally:
        folder.copies.close(ended=ended)


def _open(name: LogTo, run: LoggedRun) -> Sink:
    package, cls = SINKS[name]
    return getattr(import_module(f"archlab.training.sinks.{name}"), cls)(import_module(package), run)


def _id(folder: Path) -> str:
    """The run's name for all of them, drawn when the first is opened."""
    path = folder / _ID
    if not path.exists():
        write_with_digests(folder, {_ID: json.dumps({"id": secrets.token_hex(4)})})
    return json.loads(read_bytes(path))["id"]
