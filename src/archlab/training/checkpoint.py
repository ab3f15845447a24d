"""Checkpoints: one folder per step, with weights, optimizer state and metrics.

A single process writes whole tensors into model.safetensors and optimizer.safetensors. Several processes write one file
each, such as shard-00001-….safetensors, with parts of all tensors. Any number of processes can read either form. Every
checkpoint folder also contains metrics.jsonl and digests.json. saving.py writes checkpoints.
"""

import hashlib
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.config.lora import Lora
from archlab.config.schema import Keep
from archlab.digests import DIGESTS, names_with_digest, sha256, verify, write_digests
from archlab.errors import UserError
from archlab.files import remove_folder
from archlab.model.lora import added_to, change, is_added
from archlab.model.sharded import part_of
from archlab.training.run_files import METRICS

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
PARTS = "shard-*.safetensors"
"""Glob pattern of the files that torch.distributed.checkpoint writes, one per process."""


class Form(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


class StoredTensors(Protocol):
    """Tensors of a checkpoint by name."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Shape and dtype of each tensor, by name."""
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the stored values into the target tensors of the same names.

        A sharded target receives only this process's part.
        """
        ...

    def whole(self, name: str) -> Tensor:
        """Return a whole tensor, without other processes."""
        ...


class WholeTensors:
    """Tensors of a file that contains whole tensors. Raise UserError if the file is missing or damaged."""

    def __init__(self, file: Path) -> None:
        self._tensors = _read(file)
        self.forms = {name: Form(x.shape, x.dtype) for name, x in self._tensors.items()}

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor]) -> None:
        for name, target in targets.items():
            target.copy_(part_of(self._tensors[name], target))

    def whole(self, name: str) -> Tensor:
        return self._tensors[name]


class TensorParts:
    """Tensors of a folder whose files contain parts of tensors. A process reads only the parts that it needs."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._reader = HuggingFaceStorageReader(str(folder))
        metadata = self._reader.read_metadata().state_dict_metadata
        tensors = {name: x for name, x in metadata.items() if isinstance(x, TensorStorageMetadata)}
        self.forms = {name: Form(x.size, x.properties.dtype) for name, x in tensors.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        from torch.distributed import is_initialized

        self._load(targets, alone=not is_initialized())

    def whole(self, name: str) -> Tensor:
        form = self.forms[name]
        tensor = torch.empty(form.shape, dtype=form.dtype)
        self._load({name: tensor}, alone=True)
        return tensor

    def _load(self, targets: Mapping[str, Tensor], *, alone: bool) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load as load_parts

        with warnings.catch_warnings():  # a single process is meant to read all parts
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load_parts(dict(targets), storage_reader=self._reader, no_dist=alone)


class MergedTensors:
    """Tensors of a checkpoint of a run with LoRA, with the added matrices merged into the weights."""

    def __init__(self, stored: StoredTensors, lora: Lora) -> None:
        self._stored, self._lora = stored, lora
        self.forms = {name: form for name, form in stored.forms.items() if not is_added(name)}

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor]) -> None:
        self._stored.fill(targets)
        for name, target in targets.items():
            if (change := self._change(name)) is not None:
                target += part_of(change, target)

    def whole(self, name: str) -> Tensor:
        weight, change = self._stored.whole(name), self._change(name)
        return weight if change is None else weight + change

    def _change(self, name: str) -> Tensor | None:
        a, b = added_to(name)
        if not name.endswith(".weight") or a not in self._stored.forms:
            return None
        return change(self._stored.whole(a), self._stored.whole(b), self._lora)


def parts_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a checkpoint folder that contain parts of tensors. Yield nothing if its tensors are whole."""
    return folder.glob(PARTS)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():  # opening a pipe would wait for a writer, and a device cannot be mapped
        raise UserError(f"{path}: {'not a regular file' if path.exists() else 'missing'}")
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors cannot open a file whose name is not UTF-8
        return load(path.read_bytes())
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: damaged: {error}") from None
    except OSError as error:  # its message does not name the file
        raise UserError(f"{path}: {error.strerror or error}") from None
    except RuntimeError as error:  # torch opens the file a second time, and it may be gone by then
        raise UserError(f"{path}: {error}") from None


def step_folder(folder: Path, step: int) -> Path:
    """Return the path for the checkpoint of a step, and remove any folder that exists there.

    Such a folder is damaged, because training continues from the newest undamaged checkpoint.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():
        remove_folder(path)
    return path


def state_of(model: nn.Module, optimizer: Optimizer | None) -> dict[str, dict[str, Tensor]]:
    """Return the weights, the persistent buffers and any optimizer state.

    The result maps each file name to a mapping from tensor names to tensors.
    """
    state = {WEIGHTS: model.state_dict()}
    return state if optimizer is None else state | {OPTIMIZER: _state(model, optimizer)}


def write_whole(temporary: Path, step: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the checkpoint files of a single process. Raise UserError if the disk is full."""
    for file, tensors in state.items():
        try:
            save_file({name: x.contiguous() for name, x in tensors.items()}, temporary / file)
        except SafetensorError as error:  # for example a full disk
            raise UserError(f"{temporary.parent}: cannot write the checkpoint of step {step}: {error}") from None


def complete(temporary: Path, metrics: bytes) -> None:
    """Complete a checkpoint by adding the metrics up to its step and the digests of all files."""
    (temporary / METRICS).write_bytes(metrics)
    write_digests(temporary)


@dataclass(frozen=True)
class Retention:
    """Rule that decides which checkpoints of a run are kept, and which of them include the optimizer state."""

    keep: Keep
    last_step: int
    """Last step of the run. After its checkpoint is written, `keep.last` keeps no earlier checkpoints."""
    extension_step: int = 0
    """Step from which the run can be extended to more tokens; 0 if there is none. Its checkpoint is always kept."""

    def needs(self, step: int) -> bool:
        """Return whether a checkpoint of this step must be written regardless of the checkpoint interval."""
        return step in (self.last_step, self.extension_step)

    def needs_optimizer(self, step: int) -> bool:
        """Return whether training may continue from this step, so that its checkpoint needs the optimizer state."""
        return step != self.last_step or step == self.extension_step

    def kept(self, steps: Iterable[int], newest: int) -> set[int]:
        """Return the steps whose checkpoints are kept. `newest` is the step of the newest checkpoint."""
        before = sorted(step for step in steps if step < newest)
        recent = [] if newest == self.last_step else before[max(0, len(before) + 1 - self.keep.last) :]
        every = self.keep.every
        return {newest, *recent, *(n for n in before if n == self.extension_step or (every and n % every == 0))}


def remove_others(folder: Path, newest: int, retention: Retention) -> None:
    """Remove the checkpoints that the rule does not keep. `newest` is the step of the newest checkpoint."""
    steps = _steps(folder)
    kept = retention.kept(steps, newest)
    for step, path in steps.items():
        if step not in kept:
            remove_folder(path)


def has_checkpoint(folder: Path) -> bool:
    return bool(_steps(folder))


def newest_checkpoint(
    folder: Path, *, weights_only: bool = False, up_to: float = math.inf
) -> tuple[tuple[int, Path] | None, list[str]]:
    """Return (step, path) of the newest undamaged checkpoint in a folder, and the faults of newer checkpoints.

    `weights_only` ignores damage to files other than the weights. `up_to` is the last step that may be returned. A
    training run may remove old checkpoints while this function reads the folder.
    """
    damaged: list[str] = []
    for step, path in sorted(_steps(folder).items(), reverse=True):
        if step > up_to:
            continue
        try:
            _verify(path, weights_only)
            return (step, path), damaged
        except (UserError, FileNotFoundError) as error:
            if not path.exists():  # a running training has removed it, and has newer ones
                return newest_checkpoint(folder, weights_only=weights_only, up_to=up_to)
            damaged.append(str(error))
    return None, damaged


def _verify(path: Path, weights_only: bool) -> None:
    try:
        names = names_with_digest(path)
    except UserError:
        raise UserError(f"{path / DIGESTS}: damaged") from None
    if not names:
        raise UserError(f"{path / DIGESTS}: missing, so the checkpoint cannot be checked for damage")
    needed = ([file.name for file in parts_in(path)] or [WEIGHTS]) if weights_only else names
    for name in needed:
        if name not in names or not (path / name).is_file():
            raise UserError(f"{path / name}: missing")
        verify(path / name, remedy="")


def load_weights(path: Path, model: nn.Module, lora: Lora | None = None, *, adds_lora: bool = False) -> None:
    """Load a checkpoint's weights into the model. Raise UserError if names, shapes or dtypes do not match.

    `lora` is that of `stored_weights`. If `adds_lora` is true, the checkpoint is of a model before LoRA was added, and
    the added matrices keep their values.
    """
    stored, forms = stored_weights(path, lora)
    weights = {name: x for name, x in model.state_dict().items() if not (adds_lora and is_added(name))}
    wrong = sorted(forms.keys() ^ weights.keys())
    wrong += [name for name, x in weights.items() if name in forms and Form(x.shape, x.dtype) != forms[name]]
    if wrong:
        raise UserError(
            f"{path / WEIGHTS}: does not match the config; tensors missing, unknown or of another shape or dtype: "
            f"{', '.join(wrong[:8])}"
        )
    stored.fill(weights)


def stored_weights(path: Path, lora: Lora | None = None) -> tuple[StoredTensors, dict[str, Form]]:
    """Return the tensors of a checkpoint, and the shape and dtype of each weight.

    With `lora`, the settings of the run, its added matrices are merged into the weights.
    """
    stored = _stored(path, WEIGHTS)
    stored = stored if lora is None else MergedTensors(stored, lora)
    return stored, {name: form for name, form in stored.forms.items() if not _is_of_optimizer(name)}


def weights_digest(path: Path) -> str:
    """Return a digest of a checkpoint's weights."""
    files = [*parts_in(path)] or [path / WEIGHTS]
    return hashlib.sha256("".join(sha256(file) for file in sorted(files)).encode()).hexdigest()


def digest_of_model(checkpoints: Path) -> str:
    """Return the digest of the weights from which a run in the folder of an imported or converted model begins. Raise
    UserError if they are gone or damaged."""
    newest, damaged = newest_checkpoint(checkpoints, weights_only=True)
    if newest is None:
        raise model_is_gone(checkpoints, damaged)
    return weights_digest(newest[1])


def model_is_gone(checkpoints: Path, damaged: Sequence[str]) -> UserError:
    """Return the error that the folder of an imported or converted model has no weights left."""
    why = "; ".join(damaged) or f"{checkpoints}: no checkpoint"
    return UserError(
        f"{why}; the run cannot begin without the weights of the imported or converted model: make the folder again"
    )


def load_metrics(path: Path) -> bytes:
    return (path / METRICS).read_bytes()


def has_optimizer(path: Path) -> bool:
    return any(map(_is_of_optimizer, TensorParts(path).forms)) if any(parts_in(path)) else (path / OPTIMIZER).is_file()


def remove_after(folder: Path, step: int) -> None:
    for n, path in _steps(folder).items():
        if n > step:
            remove_folder(path)


def load_optimizer(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Load a checkpoint's optimizer state. Raise UserError if the state does not match the model."""
    stored = _stored(path, OPTIMIZER)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    forms = {name: form for name, form in stored.forms.items() if _is_of_optimizer(name)}
    owners = {name: name.rpartition("/")[0] for name in forms}
    is_adamw = isinstance(optimizer, torch.optim.AdamW)  # other optimizers may have no state for some parameters
    stored_names = set(owners.values())
    if wrong := sorted(stored_names ^ parameters.keys() if is_adamw else stored_names - parameters.keys()):
        raise UserError(
            f"{path / OPTIMIZER}: does not match the model; parameters missing or unknown: {', '.join(wrong[:8])}"
        )
    state = {name: _empty(form, parameters[owners[name]]) for name, form in forms.items()}
    stored.fill(state)
    for name, value in state.items():
        optimizer.state[parameters[owners[name]]][name.rpartition("/")[2]] = value


def _stored(path: Path, file: str) -> StoredTensors:
    return TensorParts(path) if any(parts_in(path)) else WholeTensors(path / file)


def _is_of_optimizer(name: str) -> bool:
    return "/" in name


def _empty(form: Form, parameter: Tensor) -> Tensor:
    if form.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=form.dtype, requires_grad=False)
    return torch.empty(form.shape, dtype=form.dtype, device=parameter.device)


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    values = {f"{names[p]}/{key}": value for p, state in optimizer.state.items() for key, value in state.items()}
    for name, value in values.items():
        if not isinstance(value, Tensor):  # possible for the optimizer of a plug-in
            raise UserError(
                f"the optimizer state contains {name} = {value!r}; allowed: only tensors, because nothing else is saved"
            )
    return values


def _steps(folder: Path) -> dict[int, Path]:
    matches = {path: re.fullmatch(r"step-(\d+)", path.name) for path in (folder.iterdir() if folder.is_dir() else ())}
    return {int(match[1]): path for path, match in matches.items() if match}
