"""Checkpoints: weights and optimiser state as safetensors, one folder per step, the newest kept."""

import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.errors import UserError
from archlab.files import folder_atomic

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


def save_checkpoint(folder: Path, step: int, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Write `folder/step-N`, then remove older ones. Without the optimiser a run is over."""
    older = list(_steps(folder).values())
    try:
        with folder_atomic(folder / f"step-{step:08d}") as temporary:
            save_file({name: p.detach() for name, p in model.named_parameters()}, temporary / WEIGHTS)
            if optimizer is not None:
                save_file(_state(model, optimizer), temporary / OPTIMIZER)
    except SafetensorError as error:  # how it reports a full disk
        raise UserError(f"{folder}: cannot write the checkpoint of step {step}: {error}") from None
    for path in older:
        shutil.rmtree(path)


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """(step, path) of the newest checkpoint in a folder of checkpoints."""
    steps = _steps(folder)
    return max(steps.items()) if steps else None


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill the model from a checkpoint; names, shapes and dtypes must be the model's."""
    tensors = _read(path / WEIGHTS)
    parameters = dict(model.named_parameters())
    wrong = sorted(tensors.keys() ^ parameters.keys())
    wrong += [n for n, p in parameters.items() if n in tensors and not _alike(tensors[n], p)]
    if wrong:
        raise UserError(
            f"{path / WEIGHTS}: does not fit the config; missing, surplus or mis-shaped: {', '.join(wrong[:8])}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def load_optimizer(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Fill the optimiser's state from a checkpoint."""
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in _read(path / OPTIMIZER).items():
        name, _, field = key.rpartition("/")
        states.setdefault(name, {})[field] = value
    parameters = dict(model.named_parameters())
    if wrong := sorted(states.keys() ^ parameters.keys()):
        raise UserError(f"{path / OPTIMIZER}: does not fit the model; missing or surplus: {', '.join(wrong[:8])}")
    for name, parameter in parameters.items():
        optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in states[name].items()}


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {f"{names[p]}/{key}": value for p, state in optimizer.state.items() for key, value in state.items()}


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():  # opening a pipe would wait for a writer, and a device cannot be mapped
        raise UserError(f"{path}: {'not a regular file' if path.exists() else 'missing'}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: damaged: {error}") from None
    except OSError as error:  # it names no file
        raise UserError(f"{path}: {error.strerror or error}") from None


def _steps(folder: Path) -> dict[int, Path]:
    found = {path: re.fullmatch(r"step-(\d+)", path.name) for path in (folder.iterdir() if folder.is_dir() else ())}
    return {int(match[1]): path for path, match in found.items() if match}
