"""A run's folder: config.yaml, env.json, tokenizer.json, metrics.jsonl, checkpoints/, then summary.json."""

import fcntl
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import archlab
from archlab.config.base import Base
from archlab.config.identity import diff
from archlab.config.io import load_config
from archlab.config.schema import Config
from archlab.config.yaml_text import to_yaml
from archlab.data.tokenizer import same_tokenizer
from archlab.errors import UserError
from archlab.files import TEMPORARY, disk_errors, remove_leftovers, write_atomic
from archlab.train.device import Device

NO_EFFECT = ("train.eval_every", "train.checkpoint_every")
"""Fields that do not decide how a run ends, so they may change when it goes on."""

IMPORTED = "imported.json"
_LOCK = ".lock"
_MATTERS = ("threads", "torch", "processor")
"""Of the environment: they round differently, so that a run that goes on is only nearly the uninterrupted one."""


class Imported(Base):
    """What a run that begins with published weights knows about them."""

    family: str
    special_ids: dict[str, Any]
    """`bos_token_id` and the like, as in config.json."""
    dtype: str | None
    """The published number format; null when it was mixed."""


def imported(run: Path) -> Imported | None:
    """How a run began, if with published weights."""
    path = run / IMPORTED
    if not path.is_file():
        return None
    try:
        return Imported.model_validate_json(path.read_text())
    except ValueError:
        raise UserError(f"{path}: damaged; import the model again") from None


class RunSummary(Base):
    """How a run ended."""

    status: Literal["finished", "diverged"]
    """diverged: a loss or gradient was not finite, or the end is `ruined` (divergence.py)."""
    why: str | None = None
    """Why it diverged, in words; null when finished."""
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


class BusyError(UserError):
    """Another process is training the run."""


class RunFolder:
    """Reads and writes one run's files; a kill at any moment leaves it resumable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics = path / "metrics.jsonl"

    def claim(self, config: Config, env: dict[str, Any], tokenizer: Path) -> list[str]:
        """Make it this run's folder, or check that it is; what to know when going on elsewhere than it was begun.

        UserError when it holds something else.
        """
        before: dict[str, Any] = {}
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file; --out names a folder")
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            held = sorted(p.name for p in self.path.iterdir() if not p.name.startswith((TEMPORARY, _LOCK)))
        if IMPORTED in held and "env.json" not in held:
            self._begin_with_imported(config, tokenizer)
        elif "config.yaml" in held:
            before = _parsed(self.path / "env.json") if "env.json" in held else {}
            self._check_same(config, env, before)
        elif held:
            raise UserError(f"{self.path}: holds something else ({held[0]}) and no config.yaml; name an empty folder")
        else:
            write_atomic(self.path / "config.yaml", to_yaml(config.model_dump(mode="json")))
        if "env.json" not in held:  # also when a kill came between these files
            if IMPORTED not in held:
                write_atomic(self.path / "tokenizer.json", tokenizer.read_bytes())
            write_atomic(self.path / "env.json", json.dumps(env, indent=2))
        other = [what for what in _MATTERS if what in before and before[what] != env[what]]
        moved = [f"{what} {before[what]}, now {env[what]}" for what in other]
        return [f"begun with {', '.join(moved)}: not bit for bit the uninterrupted run"] if moved else []

    def _begin_with_imported(self, config: Config, tokenizer: Path) -> None:
        """The model and the tokenizer must be the imported ones; how to train is said now."""
        changed = {f: v for f, v in diff(load_config(self.path), config).items() if f.startswith("model.")}
        if changed:
            lines = [f"  {field}: {old} there, {new} here" for field, (old, new) in changed.items()]
            raise UserError("\n".join([f"{self.path}: holds an imported model of another config", *lines]))
        own = self.path / "tokenizer.json"
        if not own.is_file() or not same_tokenizer(own, tokenizer):
            hint = f"make the data with `archlab data --tokenizer {own}`"
            raise UserError(f"{self.path}: the data has another tokenizer than the imported model; {hint}")
        write_atomic(self.path / "config.yaml", to_yaml(config.model_dump(mode="json")))

    def _check_same(self, config: Config, env: dict[str, Any], before: dict[str, Any]) -> None:
        """Where the text lies may differ as long as its tokens are the same."""
        moved = before.get("corpus") == env["corpus"]
        changed = {
            field: values
            for field, values in diff(load_config(self.path), config).items()
            if field not in NO_EFFECT and not (moved and field.startswith("data."))
        }
        if changed:
            lines = [f"  {field}: {old} there, {new} here" for field, (old, new) in changed.items()]
            raise UserError("\n".join([f"{self.path}: holds a run of another config; name another folder", *lines]))
        for what in ("corpus", "dtype", "device"):
            if before and before.get(what) != env[what]:
                raise UserError(
                    f"{self.path}: was begun with {what} {before.get(what)} and cannot go on "
                    f"with {env[what]}: the losses would not be the same; name another folder"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, so that two processes never train the same run at once."""
        with open(self.path / _LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BusyError(f"{self.path}: another process is training this run") from None
            for folder in (self.path, self.checkpoints):
                remove_leftovers(folder)
            yield

    def rewind(self, step: int) -> None:
        """Forget metrics after `step`, which will be written again, and a last line cut off by a kill."""
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
        except ValueError:
            raise UserError(f"{path}: damaged; remove the file and run again") from None


def environment(device: Device, corpus: str) -> dict[str, Any]:
    """What besides the config decides a run's numbers."""
    return {
        "archlab": archlab.__version__,
        "commit": _commit(),
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


def _commit() -> str | None:
    """Of the checkout that archlab runs from, `-dirty` with changes; None where it is installed."""
    command = ("git", "-C", str(Path(archlab.__file__).parent), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Without a last line that a kill cut off."""
    try:
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise UserError(f"{path}: damaged: {error}; name another folder") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise UserError(f"{path}: damaged; name another folder") from None
