"""Checkpoints: weights, optimiser state and metrics so far, one folder per step; the two newest are kept."""

import re
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.digests import DIGESTS, names_with_digest, verify, write_digests
from archlab.errors import UserError
from archlab.files import folder_atomic, remove_folder

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
METRICS = "metrics.jsonl"


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer | None, metrics: bytes = b""
) -> None:
    """Write `folder/step-N`, then remove all others but the one before it.

    Without an optimiser it is the last checkpoint of a finished run; then the one before is removed too. A checkpoint
    is complete in itself: the weights (persistent buffers among them), the optimiser's state, the metrics up to its
    step, and the digests of these files.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():  # a damaged one, whose steps were made again
        remove_folder(path)
    try:
        with folder_atomic(path) as temporary:
            save_file({name: t.contiguous() for name, t in model.state_dict().items()}, temporary / WEIGHTS)
            if optimizer is not None:
                save_file(_state(model, optimizer), temporary / OPTIMIZER)
            (temporary / METRICS).write_bytes(metrics)
            write_digests(temporary)
    except SafetensorError as error:  # how it reports a full disk
        raise UserError(f"{folder}: cannot write the checkpoint of step {step}: {error}") from None
    others = sorted((n, other) for n, other in _steps(folder).items() if n != step)
    before = [other for n, other in others if n < step and optimizer is not None]
    for _, other in others:
        if other not in before[-1:]:
            remove_folder(other)


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder of checkpoints holds any, damaged or not."""
    return bool(_steps(folder))


def newest_checkpoint(folder: Path, only: Collection[str] = ()) -> tuple[tuple[int, Path] | None, list[str]]:
    """(step, path) of the newest undamaged checkpoint in a folder of checkpoints, and what is wrong with newer ones.

    `only` names the files that have to be undamaged, if not all. A training that goes on may remove old checkpoints
    meanwhile.
    """
    damaged: list[str] = []
    for step, path in sorted(_steps(folder).items(), reverse=True):
        try:
            _verify(path, only)
            return (step, path), damaged
        except (UserError, FileNotFoundError) as error:
            if not path.exists():  # the training has newer ones by now
                return newest_checkpoint(folder, only)
            damaged.append(str(error))
    return None, damaged


def _verify(path: Path, only: Collection[str]) -> None:
    names = names_with_digest(path)
    if not names:
        raise UserError(f"{path / DIGESTS}: missing, so damage would not be noticed")
    for name in only or names:
        if name not in names or not (path / name).is_file():
            raise UserError(f"{path / name}: missing")
        verify(path / name, remedy="")


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill the model from a checkpoint; names, shapes and dtypes must be the model's."""
    tensors = _read(path / WEIGHTS)
    held = model.state_dict()
    wrong = sorted(tensors.keys() ^ held.keys())
    wrong += [name for name, t in held.items() if name in tensors and not _alike(tensors[name], t)]
    if wrong:
        raise UserError(
            f"{path / WEIGHTS}: does not fit the config; missing, surplus or mis-shaped: {', '.join(wrong[:8])}"
        )
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(tensors[name])


def load_metrics(path: Path) -> bytes:
    """The metrics up to a checkpoint's step."""
    return (path / METRICS).read_bytes()


def load_optimizer(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Fill the optimiser's state from a checkpoint."""
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in _read(path / OPTIMIZER).items():
        name, _, field = key.rpartition("/")
        states.setdefault(name, {})[field] = value
    parameters = dict(model.named_parameters())
    is_adamw = isinstance(optimizer, torch.optim.AdamW)  # another one may keep nothing of some parameters
    if wrong := sorted(states.keys() ^ parameters.keys() if is_adamw else states.keys() - parameters.keys()):
        raise UserError(f"{path / OPTIMIZER}: does not fit the model; missing or surplus: {', '.join(wrong[:8])}")
    for name, state in states.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found = {f"{names[p]}/{key}": value for p, state in optimizer.state.items() for key, value in state.items()}
    for name, value in found.items():
        if not isinstance(value, Tensor):  # of a plug-in
            raise UserError(f"the optimiser keeps {name} = {value!r}; allowed in its state: tensors, to be saved")
    return found


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


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


def _steps(folder: Path) -> dict[int, Path]:
    found = {path: re.fullmatch(r"step-(\d+)", path.name) for path in (folder.iterdir() if folder.is_dir() else ())}
    return {int(match[1]): path for path, match in found.items() if match}
