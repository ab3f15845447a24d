"""Run folder: config, environment, tokenizer, metrics, checkpoints, document scores and summary.

digests.json contains digests of the files, so that damage is noticed. docs/run_folder.md describes all files.
"""

import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from archlab.config.core.merge import expand, merge
from archlab.config.core.plugins import copies
from archlab.config.core.text import command_line
from archlab.config.core.trust import remember
from archlab.config.core.yaml_text import read_yaml, to_yaml, to_yaml_line
from archlab.config.identity import NO_EFFECT_ON_RESULT, differences
from archlab.config.problems import is_under
from archlab.config.schema import Config, TrainConfig
from archlab.config.sources import deciding
from archlab.config.training import resolve_train
from archlab.data.tokenizer import check_same, load
from archlab.data.tokenizer_files import tokenizer_files
from archlab.digests import DIGESTS, names_with_digest, verify_in, write_with_digests
from archlab.errors import UserError, at
from archlab.exchange.configs import load_config
from archlab.files import (
    TEMPORARY,
    disk_errors,
    make_folder,
    open_to_append,
    refuse_linked_folders,
    remove_leftovers,
    write_atomic,
)
from archlab.hf.folder import TOKENIZER
from archlab.hf.imported import IMPORTED
from archlab.training.checkpoint import digest_of_model, has_checkpoint, remove_after
from archlab.training.run_files import DOCUMENTS, ENVIRONMENT, LOCK, METRICS, SUMMARY, RunFiles
from archlab.training.schedule import LENGTH, step_to_extend
from archlab.training.sinks import Copies
from archlab.training.summary import DocumentScore, RunSummary

_RESOLVED = {
    "dtype": "train.dtype", "device": "train.device", "compiled": "train.compile",
    "micro_batch_tokens": "train.micro_batch_tokens",
}  # fmt: skip
"""Entries of env.json that record the resolved value of a config field, with the name of the field.

A run can continue if the resolved value is the same, even if the field changed. The micro-batch size is recorded only
if the loss depends on it.
"""

_LOCATIONS = {
    "corpus": ("data.path", "data.mixture", "data.held_out", "data.tokenizer"),
    "start": ("train.start",),
    "teacher": ("train.teacher.path",),
}
"""Config fields that locate the text and the trained weights, by the entry of env.json with their digest. They may
change if the digest is the same."""

_TEST_TIME = 0.1
"""Delay in seconds before a second attempt to take the lock: `is_locked` may briefly hold it for its test."""
_CHANGES_ROUNDING = ("threads", "torch", "processor", "processes")
"""Entries of env.json that affect rounding.

If one of them changes, a resumed run can differ slightly from an uninterrupted run.
"""

Changed = dict[str, tuple[Any, Any]]
"""Fields that differ, by dotted name: (value in the folder's config, value in the new config)."""


class BusyError(UserError):
    """Raised if another process is training the run."""


class RunFolder(RunFiles):
    """Files of one run. If the process is killed at any moment, the run can resume from the folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.checkpoints = path / "checkpoints"
        self._metrics = path / METRICS
        self._logged: bytearray | None = None
        self.copies = Copies({})

    def claim(
        self, config: Config, env: dict[str, Any], tokenizer: Path | None, files: Mapping[str, bytes] | None = None
    ) -> list[str]:
        """Create the folder for this run, or check that the folder already belongs to it. Return notes for the user.

        `files` come with published weights from which the run begins, and include their own tokenizer.
        A longer version extends the run in the folder. Raise UserError if the folder has another run or other files.
        """
        names = self._begin()
        self.verify()
        before = self.environment()
        self._check_code(before.get("plugins", {}), env.get("plugins", {}))
        notes: list[str] = []
        new: dict[str, str | bytes] = {}
        if "config.yaml" not in names:
            new |= _with_plugins(config, self.path)
        elif not before and self._has_model():
            self._check_untrained(config, tokenizer, env.get("document_token"))
            new |= _with_plugins(config, self.path)
            env = env | {"start": digest_of_model(self.checkpoints)}
        elif self._check_same(old := load_config(self.path), config, env, before):
            notes.append(self._extend(old, config))
        if env.get("start", began := before.get("start")) != began and before:
            notes.append(
                f"{config.train.start} no longer has the weights from which the run began; the run continues from its "
                "own checkpoint"
            )
        if not before:  # also if the process was killed while writing these files
            new |= tokenizer_files(tokenizer, self.path, files)
            new[ENVIRONMENT] = json.dumps(env, indent=2)
            write_with_digests(self.path, new)
        if different := [name for name in _CHANGES_ROUNDING if name in before and before[name] != env[name]]:
            changes = ", ".join(f"{name} {before[name]}, now {env[name]}" for name in different)
            notes.append(
                f"the run began with {changes}: its result can differ by rounding errors from that of an "
                "uninterrupted run"
            )
        return notes

    def _begin(self) -> list[str]:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; allowed: a folder")
        make_folder(self.path)
        refuse_linked_folders(self.path)
        own = (TEMPORARY, LOCK, DIGESTS)
        names = sorted(p.name for p in self.path.iterdir() if not p.name.startswith(own))
        if names and "config.yaml" not in names:
            listed = ", ".join(names[:3])
            raise UserError(f"{self.path} contains other files ({listed}); choose an empty or new folder")
        return names

    def verify(self) -> None:
        """Raise UserError if a file is damaged. Metrics and the summary are verified only when they are read."""
        for name in names_with_digest(self.path):
            if name not in (METRICS, SUMMARY):
                verify_in(self.path, name)

    def _check_code(self, began: dict[str, str], now: dict[str, str]) -> None:
        """Raise UserError if the run began with another version of a plug-in. Called before any plug-in is loaded."""
        if changed := [kind for kind, digest in now.items() if began.get(kind, digest) != digest]:
            command = command_line("train", str(self.path), options=["--out", str(self.path)])
            raise UserError(
                f"{self.path}: the plug-in that defines {changed[0]} has changed since the run began, so the losses "
                "would not be the same. Choose another folder with --out. If the folder has a copy of the file, you "
                f"can continue with it: {command}"
            )

    def _has_model(self) -> bool:
        """Return whether `archlab import` or `archlab convert` made the folder, without the env.json of a run."""
        names = names_with_digest(self.path)
        return has_checkpoint(self.checkpoints) or ("config.yaml" in names and ENVIRONMENT not in names)

    def _check_untrained(self, config: Config, tokenizer: Path | None, document_token: int | None) -> None:
        """Raise UserError if the folder of an imported or converted model cannot be trained with the new config."""
        changed = differences(load_config(self.path), config)
        refused = {f: x for f, x in changed.items() if is_under([f], ("model", "train.start", "train.start_layers"))}
        why = "contains a model with another config; to begin from its weights, choose another folder with --out"
        self._refuse(refused, why)
        if tokenizer and any((self.path / name).is_file() for name in (TOKENIZER, IMPORTED)):
            own = self.tokenizer()
            with at(config.data.field):
                check_same(own, load(tokenizer, document_token), str(self.path), str(tokenizer.parent))

    def check_extension(self, old: TrainConfig, new: TrainConfig) -> int:
        """Return the step from which the run with the settings `old` can be extended to the longer run with `new`.

        Raise UserError if there is no such step.
        """
        if self.is_of_study:
            raise UserError(
                f"{self.path} belongs to a study, which sets the length of its runs; change budget.tokens of the study"
            )
        return step_to_extend(self.path, self.checkpoints, old, new)

    def _extend(self, before: Config, config: Config) -> str:
        """Extend the run to the length in `config`, and return a note for the user.

        If the process is killed during these changes, the run can continue with either length.
        """
        old, new = resolve_train(before), resolve_train(config)
        step = self.check_extension(old, new)
        (self.path / SUMMARY).unlink(missing_ok=True)
        remove_after(self.checkpoints, step)
        length = config.train.model_dump(mode="json", include=LENGTH)
        raw = merge(expand(read_yaml(self.path / "config.yaml")), {"train": length}, Config)
        write_with_digests(self.path, {"config.yaml": to_yaml(raw)})
        return f"the run of {old.trained:,} training tokens is extended to {new.trained:,}"

    def _check_same(self, old: Config, config: Config, env: dict[str, Any], before: dict[str, Any]) -> bool:
        """Return whether the config is a longer version of the folder's run. Raise UserError if it is another run.

        The path of the text or the teacher may differ if its content is the same, and `auto` may be a resolved value.
        """
        changed = differences(old, config)
        resolved = {name: field for name, field in _RESOLVED.items() if before and name in env}
        may_differ = (*NO_EFFECT_ON_RESULT, *resolved.values(), "plugins")
        same = [paths for name, paths in _LOCATIONS.items() if before.get(name) == env.get(name)]
        moved = [path for paths in same for path in paths]
        refused = {field: values for field, values in changed.items() if not is_under([field], (*may_differ, *moved))}
        is_longer = resolve_train(config).steps > resolve_train(old).steps
        if is_longer := is_longer and refused.keys() <= {f"train.{name}" for name in LENGTH}:
            refused = {}
        self._refuse(refused, "contains a run with another config; choose another folder")
        # A run that has begun no longer needs the weights of its start.
        needed = [name for name in _LOCATIONS if name != "start" or not has_checkpoint(self.checkpoints)]
        for name in (*needed, "plugins", *resolved):
            if not before or name not in env or (began := before.get(name, False)) == (now := env[name]):
                continue
            if name in _LOCATIONS:
                field, content = _located(name, config)
                raise UserError(
                    f"{self.path}: {field}: {content} has changed since the run began (fingerprint "
                    f"{began or 'none'}, now {now or 'none'}); restore it to continue the run, or choose another folder"
                )
            setting = f"{resolved[name]}={to_yaml_line(began)}" if name in resolved else ""
            if name == "micro_batch_tokens":
                setting += ", and let each process read a multiple of it, or share it by parallel.tensor"
            remedy = f"to continue, set {setting}; otherwise " if setting else ""
            raise UserError(
                f"{self.path}: the run began with {name} {began} and cannot continue with {now}, because the losses "
                f"would not be the same; {remedy}choose another folder"
            )
        return is_longer

    def _refuse(self, changed: Changed, why: str) -> None:
        if changed:
            lines = [
                f"  {field}: {old} in the folder, {new} in the new config" for field, (old, new) in changed.items()
            ]
            raise UserError("\n".join([f"{self.path}: {why}", *lines]))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that only one process trains the run. Create the folder if needed."""
        self._begin()
        with open_to_append(self.path / LOCK) as file:
            if not (self._try_lock(file) or self._try_lock(file, delay=_TEST_TIME)):
                raise BusyError(f"{self.path}: another process is training this run")
            for folder in (self.path, self.checkpoints):
                remove_leftovers(folder)
            yield

    def _try_lock(self, file: TextIO, delay: float = 0.0) -> bool:
        """Wait for `delay` seconds, try to take the lock, and return whether this succeeded.

        Raise UserError if the file system does not support locks.
        """
        time.sleep(delay)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # for example NFS without its lock service, or Lustre without `flock`
            raise UserError(f"{self.path}: the file system cannot lock files: {error.strerror}") from None
        return True

    def rewind(self, metrics: bytes) -> None:
        """Replace the metrics by those of a checkpoint. Training will log all later steps again."""
        self._logged = bytearray(metrics)
        write_atomic(self._metrics, metrics)
        *_, last = ({"step": -1}, *self.metrics())
        self.copies.begin(last["step"] + 1)

    def logged(self) -> bytes:
        """Return the content of metrics.jsonl so far."""
        return super().logged() if self._logged is None else bytes(self._logged)

    def log(self, **values: Any) -> None:
        line = json.dumps(values) + "\n"
        if self._logged is not None:
            self._logged += line.encode()
        with disk_errors(self._metrics), open_to_append(self._metrics) as file:
            file.write(line)
        self.copies.log(values)

    def write_documents(self, scores: Sequence[DocumentScore]) -> None:
        """Write each document's score at the end of training. Write nothing for a task, which has no documents."""
        if scores:
            write_with_digests(self.path, {DOCUMENTS: json.dumps([score.model_dump() for score in scores], indent=0)})

    def finish(self, summary: RunSummary) -> None:
        """Write the metrics, then the summary that was computed from them. The summary marks the run as finished."""
        write_with_digests(self.path, {METRICS: self.logged(), SUMMARY: summary.model_dump_json(indent=2)})


class ReadOnlyRunFolder(RunFolder):
    """Run folder for all processes except the first, which alone writes to the folder."""

    def rewind(self, metrics: bytes) -> None: ...

    def log(self, **values: Any) -> None: ...

    def logged(self) -> bytes:
        return b""

    def write_documents(self, scores: Sequence[DocumentScore]) -> None: ...


def _located(name: str, config: Config) -> tuple[str, str]:
    """Return the field that locates the content of an entry of `_LOCATIONS`, and a name of the content."""
    data, teacher = config.data, config.train.teacher
    if name == "corpus":
        text = "a text" if data.mixture else data.path
        return data.field, f"{text} or its tokenizer {data.tokenizer}" if data.tokenizer else text
    if name == "teacher" and teacher and teacher.path:
        return "train.teacher.path", teacher.path
    return "train.start", str(config.train.start)


def _with_plugins(config: Config, folder: Path) -> dict[str, str | bytes]:
    """Return config.yaml and a copy of every plug-in that affects the run, so that the run can always be loaded."""
    names, copied = copies(deciding(config), folder)
    remember(deciding(config))
    return {**copied, "config.yaml": to_yaml(config.model_dump(mode="json") | {"plugins": names})}
