"""A run's folder: config.yaml, env.json, tokenizer.json, metrics.jsonl, checkpoints/, at the end summary.json."""

import fcntl
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

import archlab
from archlab.config.base import Base
from archlab.config.identity import diff
from archlab.config.io import load_config
from archlab.config.schema import Config
from archlab.config.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.files import TEMPORARY, disk_errors, write_atomic
from archlab.train.device import Device


class RunSummary(Base):
    """How a run ended."""

    status: Literal["finished", "diverged"]
    steps: int
    """Updates made."""
    tokens: int
    """Training tokens seen."""
    bits_per_byte: float | None
    """Of the held-out text at the end; null when diverged."""
    loss: float | None
    """Held-out cross-entropy in nats per token."""
    train_loss: float | None
    """Mean cross-entropy over the last tenth of the steps."""
    tokens_per_second: float | None
    """Median over the steps, evaluation and checkpoints left out."""
    mfu: float | None
    """Model FLOPs per second over the peak measured on this machine."""
    parameters: int
    device: str
    dtype: str


class RunFolder:
    """Reads and writes one run's files; a kill at any moment leaves it resumable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics = path / "metrics.jsonl"

    def claim(self, config: Config, env: dict[str, Any], tokenizer: Path) -> None:
        """Make it this run's folder, or check that it is; UserError when it holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file; --out names a folder")
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            ours = {"config.yaml", "tokenizer.json", "env.json"}
            foreign = [p.name for p in self.path.iterdir() if p.name not in ours and not p.name.startswith(TEMPORARY)]
        if not (self.path / "config.yaml").exists():
            if foreign:
                raise UserError(
                    f"{self.path}: holds something else ({sorted(foreign)[0]}) and no config.yaml; name an empty folder"
                )
            write_atomic(self.path / "tokenizer.json", tokenizer.read_bytes())
            write_atomic(self.path / "env.json", json.dumps(env, indent=2))
            write_atomic(self.path / "config.yaml", to_yaml(config.model_dump(mode="json")))
            return
        changed = diff(load_config(self.path), config)
        if changed:
            lines = [f"  {field}: {old} there, {new} here" for field, (old, new) in changed.items()]
            raise UserError("\n".join([f"{self.path}: holds a run of another config; name another folder", *lines]))
        self._same_environment(env)

    def _same_environment(self, env: dict[str, Any]) -> None:
        before = json.loads((self.path / "env.json").read_text())
        for what in ("corpus", "dtype", "device"):
            if before[what] != env[what]:
                raise UserError(
                    f"{self.path}: was begun with {what} {before[what]} and cannot go on with {env[what]}: "
                    "the losses would not be the same; name another folder"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, so that two processes never train the same run at once."""
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path}: another process is training this run") from None
            yield

    def rewind(self, step: int) -> None:
        """Forget metrics after `step`, which a resumed run will write again, and a last line cut off by a kill."""
        if self._metrics.exists():
            kept = [line for line in _whole_lines(self._metrics) if line["step"] <= step]
            write_atomic(self._metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def log(self, **values: Any) -> None:
        """Append one line of metrics."""
        with disk_errors(self._metrics), open(self._metrics, "a") as file:
            file.write(json.dumps(values) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines so far; those with `bits_per_byte` are evaluations."""
        return _whole_lines(self._metrics) if self._metrics.exists() else []

    def finish(self, summary: RunSummary) -> None:
        """Write the summary: the run is over."""
        write_atomic(self.path / "summary.json", summary.model_dump_json(indent=2))

    def summary(self) -> RunSummary | None:
        """How the run ended, or None while it has not."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            return RunSummary.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError):
            raise UserError(f"{path}: damaged; remove the file and run again") from None


def environment(device: Device, corpus: str) -> dict[str, Any]:
    """What besides the config decides a run's numbers."""
    return {
        "archlab": archlab.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": device.name,
        "device": device.kind,
        "dtype": str(device.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "corpus": corpus,
    }


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
