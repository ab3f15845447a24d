"""Reading of the tensors in a Hugging Face folder: from safetensors or torch.save files, from one file or several.

Reading a file never runs code that it contains.
"""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT
from archlab.hf.folder import INDEX, PICKLED, PICKLED_INDEX, WEIGHTS, own_file, read_json

FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Dtypes of weights that archlab reads."""

_HEADER_FORMATS = {
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip


def format_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as it is written in config files, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def are_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal after `a` is converted to the dtype of `b`."""
    return a.shape == b.shape and torch.equal(a.to(b.dtype), b)


class _Safetensors:
    """Safetensors file. It is memory-mapped, and each tensor is read when it is requested.

    The file stays open, because each opening parses the header, which takes a second if the header has several
    megabytes.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with damage_named(file):
            self._opened: Any = safe_open(file, framework="pt")
            self.names = list(self._opened.keys())

    def content(self, name: str) -> Tensor:
        with damage_named(self.file):
            return self._opened.get_tensor(name)

    def header(self, name: str) -> Tensor:
        with damage_named(self.file):
            header = self._opened.get_slice(name)
            dtype = _HEADER_FORMATS.get(header.get_dtype(), torch.int8)
            return torch.empty(header.get_shape(), dtype=dtype, device="meta")


class _Pickled:
    """File of torch.save. It is read with `weights_only=True`: torch then refuses a pickle that could call functions
    other than those that create tensors.

    The file is memory-mapped. Only files in the format of torch before 1.6 are read as a whole.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._tensors = _unpickled(file)
        self.names = list(self._tensors)

    def content(self, name: str) -> Tensor:
        return self._tensors[name]

    def header(self, name: str) -> Tensor:
        return torch.empty_like(self._tensors[name], device="meta")


def _unpickled(file: Path) -> dict[str, Tensor]:
    with damage_named(file), warnings.catch_warnings(action="ignore"):
        with file.open("rb") as opened:
            is_zip = opened.read(4) == b"PK\x03\x04"
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL ([\w.]+)", str(error))
            reason = f"names {refused[1]}" if refused else "contains more than tensors"
            raise UserError(
                f"{file}: not read, because its pickle {reason}, which could run code; allowed: a dictionary of "
                "tensors, as returned by model.state_dict()"
            ) from None
        except Exception as error:  # a damaged pickle can raise any error in torch's reader
            raise ValueError(f"{type(error).__name__}: {error}") from None
    tensors = content if isinstance(content, Mapping) else {}
    if not tensors or not all(isinstance(name, str) and _is_plain(value) for name, value in tensors.items()):
        raise UserError(
            f"{file}: contains something other than tensors; allowed: a dictionary of tensors, as returned by "
            "model.state_dict()"
        )
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


_FORMS = ((WEIGHTS, INDEX, _Safetensors), (PICKLED, PICKLED_INDEX, _Pickled))
"""Layouts of a folder: (name of a single weights file, name of an index of several files, reader).

archlab reads the first layout in this list that the folder contains, as transformers does.
"""


class Tensors(Mapping[str, Tensor]):
    """Tensors of a folder by name."""

    def __init__(self, folder: Path, shapes_only: bool = False) -> None:
        """Open the weights files of a folder. With `shapes_only`, the tensors are on the meta device."""
        self._file_of = dict(_tensor_files(folder))
        self._shapes_only = shapes_only

    def content(self, name: str) -> Tensor:
        return self._file_of[name].content(name)

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].header(name) if self._shapes_only else self.content(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def weights_files(folder: Path) -> list[str]:
    """Return the names of the files that contain a folder's tensors."""
    return sorted({opened.file.name for _, opened in _tensor_files(folder)})


def _tensor_files(folder: Path) -> Iterator[tuple[str, _Safetensors | _Pickled]]:
    names = [name for form in _FORMS for name in form[:2]]
    here = next((name for name in names if (folder / name).is_file()), None)
    if here is None:
        raise UserError(f"{folder}: no weights; allowed: {', '.join(names)}")
    _, index_name, read = next(form for form in _FORMS if here in form)
    index: dict[str, Any] = {}
    if here == index_name:
        index = read_json(folder / here, LARGE_TEXT_LIMIT).get("weight_map") or {}
        if not isinstance(index, dict) or not index:
            raise UserError(f"{folder / here}: the key weight_map is missing")
    seen: dict[str, str] = {}
    for name in sorted({str(name) for name in index.values()} or {here}):
        file = own_file(folder, name)
        if not file.is_file():
            raise UserError(f"{file}: missing, but {here} names it")
        opened = read(file)
        if twice := [f"{tensor} is also in {seen[tensor]}" for tensor in opened.names if tensor in seen]:
            raise UserError(f"{file}: {twice[0]}")
        seen |= dict.fromkeys(opened.names, name)
        yield from ((tensor, opened) for tensor in opened.names)
    if lost := [f"{tensor} in {name}" for tensor, name in index.items() if seen.get(tensor) != name]:
        raise UserError(f"{folder / here}: lists tensors that the files do not contain: {', '.join(lost[:8])}")


@contextmanager
def damage_named(file: Path) -> Iterator[None]:
    """Within the block, replace an error from reading a damaged file with a UserError that names the file."""
    try:
        yield
    except (SafetensorError, ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"{file}: damaged: {error}") from None
    except OSError as error:  # errors of safetensors do not name the file
        raise UserError(f"{file}: {error.strerror or error}") from None
