"""A run's folder: config.yaml, env.json, tokenizer.json, metrics.jsonl, checkpoints/, documents.json, summary.json.

Their digests are in digests.json, so that damage is noticed; docs/run_folder.md says what the folder promises.
"""

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter
from tokenizers import Tokenizer

from archlab.config.core.merge import expand, merge
from archlab.config.core.plugins import copies
from archlab.config.core.trust import remember
from archlab.config.core.yaml_text import read_yaml, to_yaml, to_yaml_line
from archlab.config.identity import NO_EFFECT_ON_RESULT, diff
from archlab.config.problems import is_under
from archlab.config.schema import Config, TrainConfig
from archlab.config.sources import deciding
from archlab.config.training import resolve_train
from archlab.data.tokenizer import check_same, end_of_text, load, own_tokenizer, read
from archlab.digests import DIGESTS, RESTORE_OR_REMAKE, names_with_digest, verify, write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.files import (
    STUDY,
    TEMPORARY,
    disk_errors,
    make_folder,
    open_to_append,
    read_bytes,
    refuse_linked_folders,
    remove_leftovers,
    write_atomic,
)
from archlab.hf.imported import IMPORTED
from archlab.training.checkpoint import METRICS, remove_after
from archlab.training.evaluate import DocumentScore
from archlab.training.schedule import LENGTH, step_to_extend
from archlab.training.sinks import Copies
from archlab.training.summary import RunSummary

_OUTCOMES = {
    "dtype": "train.dtype", "device": "train.device", "compiled": "train.compile",
    "micro_batch_tokens": "train.micro_batch_tokens",
}  # fmt: skip
"""Part of the environment -> the field of which it is what came of it; the run goes on where that is the same. Micro
batches are there where they decide the losses."""

PROBES = "probes"
"""Field of a line of metrics that holds what a probe found."""

_WHERE_IT_LIES = ("data.path", "data.mixture", "data.held_out")
"""Fields that decide the text, which may lie elsewhere by now; its tokens are compared by themselves."""

SUMMARY = "summary.json"
DOCUMENTS = "documents.json"
_DOCUMENTS = TypeAdapter(list[DocumentScore])
_LOCK = ".lock"
_LOOK = 0.1
"""Seconds in which whoever only asks about the lock (`is_locked`) has let it go."""
_CHANGES_ROUNDING = ("threads", "torch", "processor", "processes")
"""Parts of the environment. Where one differs, numbers are rounded in another way: a run that goes on is then only
nearly the uninterrupted one."""


Changed = dict[str, tuple[Any, Any]]
"""Dotted field -> its value in the folder's config and in the new one."""


class BusyError(UserError):
    """Another process is training the run."""


class RunFolder:
    """Reads and writes one run's files; a kill at any moment leaves it resumable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics = path / METRICS
        self._logged: bytearray | None = None
        """The metrics of a training that goes on: a change of their file meanwhile does not reach the result."""
        self.copies = Copies({})

    def claim(self, config: Config, env: dict[str, Any], tokenizer: Path | None) -> list[str]:
        """Make it this run's folder, or check that it is; a longer run than the one it holds extends that one.

        Returns notes for the user. Raises UserError if the folder holds something else.
        """
        names = self._begin()
        self.verify()
        before = self.environment()
        self._check_code(before.get("plugins", {}), env.get("plugins", {}))
        notes: list[str] = []
        new: dict[str, str | bytes] = {}
        if "config.yaml" not in names:
            new |= _with_plugins(config, self.path)
        elif IMPORTED in names and not before:
            self._check_imported(diff(load_config(self.path), config), tokenizer, env.get("document_token"))
            new |= _with_plugins(config, self.path)
        elif self._check_same(held := load_config(self.path), config, env, before):
            notes.append(self._extend(held, config))
        if not before:  # also when a kill came between these files
            if IMPORTED not in names and tokenizer:
                new["tokenizer.json"] = tokenizer.read_bytes()
            new["env.json"] = json.dumps(env, indent=2)
            write_with_digests(self.path, new)
        other = [what for what in _CHANGES_ROUNDING if what in before and before[what] != env[what]]
        moved = [f"{what} {before[what]}, now {env[what]}" for what in other]
        return [*notes, *([f"begun with {', '.join(moved)}: not bit for bit the uninterrupted run"] if moved else [])]

    def _begin(self) -> list[str]:
        """Make the folder, or check that it may be a run's; the names of the files it holds."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file; --out names a folder")
        make_folder(self.path)
        refuse_linked_folders(self.path)
        own = (TEMPORARY, _LOCK, DIGESTS)
        names = sorted(p.name for p in self.path.iterdir() if not p.name.startswith(own))
        if names and "config.yaml" not in names:
            raise UserError(f"{self.path}: holds something else ({names[0]}) and no config.yaml; name an empty folder")
        return names

    def verify(self) -> None:
        """UserError for damage to any file but the metrics and the summary, which are verified where they are read."""
        for name in names_with_digest(self.path):
            if name not in (METRICS, SUMMARY):
                verify(self.path / name)

    def _check_code(self, began: dict[str, str], now: dict[str, str]) -> None:
        """Raise UserError if the run was begun with another version of a user's kind; called before both are loaded."""
        if changed := [kind for kind, digest in now.items() if began.get(kind, digest) != digest]:
            raise UserError(
                f"{self.path}: was begun with plugins that have changed since, and cannot go on with another "
                f"{changed[0]}: the losses would not be the same; name another folder with --out, or go on with the "
                f"copy of the file that the folder has, if it has one: archlab train {self.path} --out {self.path}"
            )

    def _check_imported(self, changed: Changed, tokenizer: Path | None, document_token: int | None) -> None:
        """UserError unless the model and the tokenizer are the imported ones; the new config decides how to train."""
        refused = {field: values for field, values in changed.items() if field.startswith("model.")}
        self._refuse(refused, "holds an imported model of another config")
        if tokenizer:
            check_same(self.tokenizer(), load(tokenizer, document_token), str(self.path), str(tokenizer.parent))

    def check_extension(self, old: TrainConfig, new: TrainConfig) -> int:
        """Return the step from which the run of `old` goes on as the longer one of `new`; UserError if none."""
        if self.is_of_study:
            raise UserError(f"{self.path}: is a run of a study, which alone decides its length (budget.tokens)")
        return step_to_extend(self.path, self.checkpoints, old, new)

    def _extend(self, held: Config, config: Config) -> str:
        """Make it the longer run, of which it is the first part; returns a note.

        A kill between two of these changes leaves a run that goes on as either of the two.
        """
        old, new = resolve_train(held), resolve_train(config)
        step = self.check_extension(old, new)
        (self.path / SUMMARY).unlink(missing_ok=True)
        remove_after(self.checkpoints, step)
        asked = config.train.model_dump(mode="json", include=LENGTH)
        raw = merge(expand(read_yaml(self.path / "config.yaml")), {"train": asked}, Config)
        write_with_digests(self.path, {"config.yaml": to_yaml(raw)})
        return f"the run of {old.trained:,} training tokens becomes one of {new.trained:,}"

    def _check_same(self, held: Config, config: Config, env: dict[str, Any], before: dict[str, Any]) -> bool:
        """UserError if it is another run than the one held; whether it is the same, but longer.

        The path of the text may differ as long as its tokens are the same, and `auto` may be said or not.
        """
        changed = diff(held, config)
        outcomes = {what: field for what, field in _OUTCOMES.items() if before and what in env}
        may_differ = (*NO_EFFECT_ON_RESULT, *outcomes.values(), "plugins")
        moved = _WHERE_IT_LIES if before.get("corpus") == env["corpus"] else ()
        refused = {field: values for field, values in changed.items() if not is_under([field], (*may_differ, *moved))}
        is_longer = resolve_train(config).steps > resolve_train(held).steps
        if is_longer := is_longer and refused.keys() <= {f"train.{name}" for name in LENGTH}:
            refused = {}
        self._refuse(refused, "holds a run of another config; name another folder")
        for what in ("corpus", "plugins", *outcomes):
            if before and what in env and (began := before.get(what, False)) != env[what]:
                same = f"{outcomes[what]}={to_yaml_line(began)}" if what in outcomes else ""
                many = f"{same} with processes that each read a multiple of it, or share it by parallel.tensor"
                to_go_on = f"to go on, set {many if what == 'micro_batch_tokens' else same}; else " if same else ""
                raise UserError(
                    f"{self.path}: was begun with {what} {began} and cannot go on with {env[what]}: "
                    f"the losses would not be the same; {to_go_on}name another folder"
                )
        return is_longer

    @property
    def is_of_study(self) -> bool:
        """Whether it lies among the runs of a study's folder."""
        runs = self.path.absolute().parent
        return runs.name == "runs" and (runs.parent / STUDY).is_file()

    def _refuse(self, changed: Changed, why: str) -> None:
        """UserError that lists the changed fields, if there are any."""
        if changed:
            lines = [f"  {field}: {old} there, {new} here" for field, (old, new) in changed.items()]
            raise UserError("\n".join([f"{self.path}: {why}", *lines]))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that two processes never train one run at once; the folder is made if needed."""
        self._begin()
        with open_to_append(self.path / _LOCK) as file:
            if not (self._taken(file) or self._taken(file, after=_LOOK)):
                raise BusyError(f"{self.path}: another process is training this run")
            for folder in (self.path, self.checkpoints):
                remove_leftovers(folder)
            yield

    def _taken(self, file: TextIO, after: float = 0.0) -> bool:
        """The lock, if nobody holds it so many seconds from now; UserError for a disk without locks."""
        time.sleep(after)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # NFS without its lock service, Lustre mounted without `flock`
            raise UserError(f"{self.path}: this disk cannot lock files: {error.strerror}") from None
        return True

    def is_locked(self) -> bool:
        """Whether a process is training the run now."""
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def rewind(self, metrics: bytes) -> None:
        """Go on from these metrics, which are a checkpoint's; what came later will be written again."""
        self._logged = bytearray(metrics)
        write_atomic(self._metrics, metrics)
        *_, last = ({"step": -1}, *self.metrics())
        self.copies.begin(last["step"] + 1)

    def log(self, **values: Any) -> None:
        """Append one line of metrics."""
        line = json.dumps(values) + "\n"
        if self._logged is not None:
            self._logged += line.encode()
        with disk_errors(self._metrics), open_to_append(self._metrics) as file:
            file.write(line)
        self.copies.log(values)

    def logged(self) -> bytes:
        """All lines so far, as they were written."""
        if self._logged is not None:
            return bytes(self._logged)
        if not self._metrics.exists():
            return b""
        if (ended := self.path / SUMMARY).exists():  # before, the file grows
            verify(self._metrics, f"delete {ended} and run again, which reads both off the last checkpoint")
        return read_bytes(self._metrics, limit=sys.maxsize)  # as long as the run

    def metrics(self) -> list[dict[str, Any]]:
        """All lines so far, without a last line that a kill cut off; lines with `held_out_loss` are
        evaluations."""
        lines = self.logged().splitlines(keepends=True)
        try:
            return [_checked(json.loads(line)) for line in lines if line.endswith(b"\n")]
        except (ValueError, OverflowError, RecursionError) as error:
            raise UserError(f"{self._metrics}: damaged: {error}; run again, from the last checkpoint") from None

    def write_documents(self, scores: Sequence[DocumentScore]) -> None:
        """How well each document is predicted at the end; nothing for a task, which has none."""
        if scores:
            write_with_digests(self.path, {DOCUMENTS: json.dumps([score.model_dump() for score in scores], indent=0)})

    def documents(self) -> list[DocumentScore]:
        """As written at the end of training; empty where none were."""
        path = self.path / DOCUMENTS
        if not path.exists():
            return []
        verify(path)
        return _DOCUMENTS.validate_json(path.read_bytes())

    def finish(self, summary: RunSummary) -> None:
        """Write the summary, after the metrics from which it was computed: the run is over."""
        write_with_digests(self.path, {METRICS: self.logged(), SUMMARY: summary.model_dump_json(indent=2)})

    def summary(self) -> RunSummary | None:
        """How the run ended, or None while it has not."""
        path, remedy = self.path / SUMMARY, "delete the file and run again"
        if not path.exists():
            return None
        verify(path, remedy)
        try:
            return RunSummary.model_validate_json(path.read_bytes())
        except ValueError:
            raise UserError(f"{path}: damaged; {remedy}") from None

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer, with the token that preceded each document in training.

        Before training, that is the imported model's own. Runs of old versions did not write it down.
        """
        file, env = own_tokenizer(self.path), self.environment()
        if env and "document_token" not in env:
            return load(file, end_of_text(read(file)[0]))
        return load(file, env.get("document_token"))

    def environment(self) -> dict[str, Any]:
        """What besides the config decides its numbers; empty when the run has not begun."""
        path = self.path / "env.json"
        if not path.exists():
            return {}
        verify(path)
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{path}: damaged; {RESTORE_OR_REMAKE}")
        return found


class SeenByOthers(RunFolder):
    """The folder as those of several processes have it that are not the first: they read, and write nothing."""

    def rewind(self, metrics: bytes) -> None:
        """Nothing is kept here."""

    def log(self, **values: Any) -> None:
        """Nothing is kept here."""

    def logged(self) -> bytes:
        """Nothing."""
        return b""

    def write_documents(self, scores: Sequence[DocumentScore]) -> None:
        """The first process writes them."""


def _with_plugins(config: Config, folder: Path) -> dict[str, str | bytes]:
    """config.yaml, and beside it a copy of every plug-in that decides the run, so that it can be loaded for ever; the
    others are not the run's business."""
    names, copied = copies(deciding(config), folder)
    remember(deciding(config))
    return {**copied, "config.yaml": to_yaml(config.model_dump(mode="json") | {"plugins": names})}


_REQUIRED_WITH = {
    "lr": ("tokens", "loss", "grad_norm", "tokens_per_second"),
    "bits_per_byte": ("tokens", "held_out_loss"),
    "accuracy": ("tokens", "held_out_loss"),
}
"""Field of a line of metrics -> the fields that every such line has too."""


def _checked(line: Any) -> dict[str, Any]:
    """A line of metrics with all its fields; ValueError for any other."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise ValueError("a line is no object with a step")
    whole = all(also in line for key, others in _REQUIRED_WITH.items() if key in line for also in others)
    measured = "diverged" in line or all(_is_measure(line[name]) for name in line if name != PROBES)
    measured = measured and isinstance(line.get(PROBES, {}), dict)
    if not (whole and measured and line.get("tokens_per_second") != 0):
        raise ValueError(f"the line of step {line['step']} is not what a training writes")
    return line


def _is_measure(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
