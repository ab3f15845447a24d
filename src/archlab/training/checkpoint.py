"""Checkpoints: a folder per step with weights, optimiser state and metrics so far. How they are written: saving.py.

    model.safetensors  optimizer.safetensors     of one process: whole tensors
    shard-00001-….safetensors                    of several: what each has of weights and optimiser together
    metrics.jsonl  digests.json

Either is read by any number of processes.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.config.schema import Keep
from archlab.digests import DIGESTS, names_with_digest, verify, write_digests
from archlab.errors import UserError
from archlab.files import remove_folder
from archlab.training.stored import Form, Parts, Stored, Whole, parts_in

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
METRICS = "metrics.jsonl"


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


def remove_others(folder: Path, step: int, keep: Keep, extension_step: int, *, is_last: bool) -> None:
    """Remove all checkpoints except `step`, `extension_step` and those that `keep` names.

    After the last checkpoint of a finished run, `keep.last` has no effect.
    """
    others = {n: path for n, path in _steps(folder).items() if n != step}
    before = sorted(n for n in others if n < step)
    kept = set() if is_last else set(before[max(0, len(before) + 1 - keep.last) :])
    kept |= {n for n in before if n == extension_step or (keep.every and n % keep.every == 0)}
    for n, path in others.items():
        if n not in kept:
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
    return any(map(_is_of_optimizer, Parts(path).forms)) if any(parts_in(path)) else (path / OPTIMIZER).is_file()


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


def _stored(path: Path, file: str) -> Stored:
    return Parts(path) if any(parts_in(path)) else Whole(path / file)


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
