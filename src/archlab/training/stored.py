"""Tensors as a checkpoint has them: whole, of one process, or in parts, of several."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from archlab.errors import UserError
from archlab.model.cut import part_of

PARTS = "shard-*.safetensors"
"""As torch.distributed.checkpoint names what each of several processes writes."""


class Form(NamedTuple):
    """What a tensor is, without its values."""

    shape: torch.Size
    dtype: torch.dtype


class Stored(Protocol):
    """Tensors by name."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Of each."""
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the values of these names; of a target that is cut, this process's part."""
        ...


class Whole:
    """A file of whole tensors; UserError where it is missing or damaged."""

    def __init__(self, file: Path) -> None:
        self._tensors = _read(file)
        self.forms = {name: Form(x.shape, x.dtype) for name, x in self._tensors.items()}

    @torch.no_grad()
    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See Stored."""
        for name, target in targets.items():
            target.copy_(part_of(self._tensors[name], target))


class Parts:
    """Files in a folder, each with parts of all tensors; a process reads of them what it needs."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._reader = HuggingFaceStorageReader(str(folder))
        found = self._reader.read_metadata().state_dict_metadata
        tensors = {name: x for name, x in found.items() if isinstance(x, TensorStorageMetadata)}
        self.forms = {name: Form(x.size, x.properties.dtype) for name, x in tensors.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See Stored."""
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
