"""Checkpoints: a folder per step with weights, optimiser state and metrics so far. How they are written: saving.py.

    model.safetensors  optimizer.safetensors     of one process: whole tensors
    shard-00001-….safetensors                    of several: what each has of weights and optimiser together
    metrics.jsonl  digests.json

Either is read by any number of processes.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.config.schema import Keep
from archlab.digests import DIGESTS, names_with_digest, verify, write_digests
from archlab.errors import UserError
from archlab.files import remove_folder
from archlab.model.cut import part_of

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
METRICS = "metrics.jsonl"
PARTS = "shard-*.safetensors"
"""As torch.distributed.checkpoint names what each of several processes writes."""


class Form(NamedTuple):
    """What a tensor is, without its values."""

    shape: torch.Size
    dtype: torch.dtype


class StoredTensors(Protocol):
    """Tensors of a checkpoint by name."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Of each."""
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the values of these names; of a target that is cut, this process's part."""
        ...


class WholeTensors:
    """A file of whole tensors; UserError where it is missing or damaged."""

    def __init__(self, file: Path) -> None:
        self._tensors = _read(file)
        self.forms = {name: Form(x.shape, x.dtype) for name, x in self._tensors.items()}

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See StoredTensors."""
        for name, target in targets.items():
            target.copy_(part_of(self._tensors[name], target))


class TensorParts:
    """Files in a folder, each with parts of all tensors; a process reads of them what it needs."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._reader = HuggingFaceStorageReader(str(folder))
        found = self._reader.read_metadata().state_dict_metadata
        tensors = {name: x for name, x in found.items() if isinstance(x, TensorStorageMetadata)}
        self.forms = {name: Form(x.size, x.properties.dtype) for name, x in tensors.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See StoredTensors."""
        from torch.distributed import is_initialized
        from torch.distributed.checkpoint.state_dict_loader import load as load_parts

        with warnings.catch_warnings():  # that one process reads all of them is meant
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load_parts(dict(targets), storage_reader=self._reader, no_dist=not is_initialized())


def parts_in(folder: Path) -> Iterator[Path]:
    """Files of parts; none where tensors are whole."""
    return folder.glob(PARTS)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():  # opening a pipe would wait for a writer, and a device cannot be mapped
        raise UserError(f"{path}: {'not a regular file' if path.exists() else 'missing'}")
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors cannot open a file whose name is no UTF-8
        return load(path.read_bytes())
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: damaged: {error}") from None
    except OSError as error:  # its message names no file
        raise UserError(f"{path}: {error.strerror or error}") from None


def step_folder(folder: Path, step: int) -> Path:
    """Where a step's checkpoint stands, without the damaged one that may be there: its steps were made again."""
    path = folder / f"step-{step:08d}"
    if path.exists():
        remove_folder(path)
    return path


def state_of(model: nn.Module, optimizer: Optimizer | None) -> dict[str, dict[str, Tensor]]:
    """File -> name -> tensor: the weights (persistent buffers among them), and the optimiser's state unless None."""
    state = {WEIGHTS: model.state_dict()}
    return state if optimizer is None else state | {OPTIMIZER: _state(model, optimizer)}


def write_whole(temporary: Path, step: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """File -> name -> tensor, as one process has them; UserError where the disk is full."""
    for file, tensors in state.items():
        try:
            save_file({name: x.contiguous() for name, x in tensors.items()}, temporary / file)
        except SafetensorError as error:  # how it reports a full disk
            raise UserError(f"{temporary.parent}: cannot write the checkpoint of step {step}: {error}") from None


def complete(temporary: Path, metrics: bytes) -> None:
    """Add the metrics up to its step, and the digests of all files."""
    (temporary / METRICS).write_bytes(metrics)
    write_digests(temporary)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a run stay on the disk, and which of them hold the optimizer's state."""

    keep: Keep
    last_step: int
    """The step with which the run ends. After its checkpoint, `keep.last` has no effect."""
    extension_step: int = 0
    """The step from which a longer run goes on; its checkpoint stays whatever `keep` says. 0: none."""

    def needs(self, step: int) -> bool:
        """Whether a checkpoint of that step is always written."""
        return step in (self.last_step, self.extension_step)

    def needs_optimizer(self, step: int) -> bool:
        """Whether a training may go on from that step."""
        return step != self.last_step or step == self.extension_step

    def kept(self, steps: Iterable[int], newest: int) -> set[int]:
        """Return those of the checkpoints of these steps that stay when `newest` has been written."""
        before = sorted(step for step in steps if step < newest)
        recent = [] if newest == self.last_step else before[max(0, len(before) + 1 - self.keep.last) :]
        every = self.keep.every
        return {newest, *recent, *(n for n in before if n == self.extension_step or (every and n % every == 0))}


def remove_others(folder: Path, newest: int, retention: Retention) -> None:
    """Remove the checkpoints that do not stay when that of `newest` has been written."""
    steps = _steps(folder)
    kept = retention.kept(steps, newest)
    for step, path in steps.items():
        if step not in kept:
            remove_folder(path)


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder of checkpoints holds any, damaged or not."""
    return bool(_steps(folder))


def newest_checkpoint(
    folder: Path, *, weights_only: bool = False, up_to: float = math.inf
) -> tuple[tuple[int, Path] | None, list[str]]:
    """(step, path) of the newest undamaged checkpoint in a folder of checkpoints, and what is wrong with newer ones.

    `weights_only`: nothing else has to be undamaged. A training that goes on may remove old checkpoints meanwhile.
    `up_to`: the last step that may be returned.
    """
    damaged: list[str] = []
    for step, path in sorted(_steps(folder).items(), reverse=True):
        if step > up_to:
            continue
        try:
            _verify(path, weights_only)
            return (step, path), damaged
        except (UserError, FileNotFoundError) as error:
            if not path.exists():  # the training has newer ones by now
                return newest_checkpoint(folder, weights_only=weights_only, up_to=up_to)
            damaged.append(str(error))
    return None, damaged


def _verify(path: Path, weights_only: bool) -> None:
    try:
        names = names_with_digest(path)
    except UserError:
        raise UserError(f"{path / DIGESTS}: damaged") from None
    if not names:
        raise UserError(f"{path / DIGESTS}: missing, so damage would not be noticed")
    needed = ([file.name for file in parts_in(path)] or [WEIGHTS]) if weights_only else names
    for name in needed:
        if name not in names or not (path / name).is_file():
            raise UserError(f"{path / name}: missing")
        verify(path / name, remedy="")


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill the model from a checkpoint; names, shapes and dtypes must be the model's."""
    stored, held = _stored(path, WEIGHTS), model.state_dict()
    forms = {name: form for name, form in stored.forms.items() if not _is_of_optimizer(name)}
    wrong = sorted(forms.keys() ^ held.keys())
    wrong += [name for name, x in held.items() if name in forms and Form(x.shape, x.dtype) != forms[name]]
    if wrong:
        raise UserError(
            f"{path / WEIGHTS}: does not fit the config; missing, surplus or mis-shaped: {', '.join(wrong[:8])}"
        )
    stored.fill(held)


def load_metrics(path: Path) -> bytes:
    """The metrics up to a checkpoint's step."""
    return (path / METRICS).read_bytes()


def has_optimizer(path: Path) -> bool:
    """Whether a checkpoint holds the optimizer's state."""
    return any(map(_is_of_optimizer, TensorParts(path).forms)) if any(parts_in(path)) else (path / OPTIMIZER).is_file()


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps."""
    for n, path in _steps(folder).items():
        if n > step:
            remove_folder(path)


def load_optimizer(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Fill the optimiser's state from a checkpoint."""
    stored, parameters = _stored(path, OPTIMIZER), dict(model.named_parameters())
    forms = {name: form for name, form in stored.forms.items() if _is_of_optimizer(name)}
    owners = {name: name.rpartition("/")[0] for name in forms}
    is_adamw = isinstance(optimizer, torch.optim.AdamW)  # another one may keep nothing of some parameters
    found = set(owners.values())
    if wrong := sorted(found ^ parameters.keys() if is_adamw else found - parameters.keys()):
        raise UserError(f"{path / OPTIMIZER}: does not fit the model; missing or surplus: {', '.join(wrong[:8])}")
    state = {name: _empty(form, parameters[owners[name]]) for name, form in forms.items()}
    stored.fill(state)
    for name, value in state.items():
        optimizer.state[parameters[owners[name]]][name.rpartition("/")[2]] = value


def _stored(path: Path, file: str) -> StoredTensors:
    return TensorParts(path) if any(parts_in(path)) else WholeTensors(path / file)


def _is_of_optimizer(name: str) -> bool:
    """`layers.0.mlp.up.weight/exp_avg`; no module's name has a slash."""
    return "/" in name


def _empty(form: Form, parameter: Tensor) -> Tensor:
    """A place for what an optimiser keeps of a parameter: cut as that is, where it has its shape."""
    if form.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=form.dtype, requires_grad=False)
    return torch.empty(form.shape, dtype=form.dtype, device=parameter.device)


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = {f"{names[p]}/{key}": value for p, state in optimizer.state.items() for key, value in state.items()}
    for name, value in found.items():
        if not isinstance(value, Tensor):  # of a plug-in
            raise UserError(f"the optimiser keeps {name} = {value!r}; allowed in its state: tensors, to be saved")
    return found


def _steps(folder: Path) -> dict[int, Path]:
    found = {path: re.fullmatch(r"step-(\d+)", path.name) for path in (folder.iterdir() if folder.is_dir() else ())}
    return {int(match[1]): path for path, match in found.items() if match}
