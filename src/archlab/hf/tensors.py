"""The weights of Hugging Face folders: safetensors or files of torch.save, whole or in shards. No file runs code."""

import json
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archlab.config.core.merge import Raw
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, folder_atomic
from archlab.hf.folder import CONFIG, INDEX, PICKLED, PICKLED_INDEX, WEIGHTS, own_file, read_json

SHARD_BYTES = 5 * 10**9
"""Where a new file begins."""

FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Of weights that archlab reads."""

_HEADER_FORMATS = {
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
"""As safetensors spells them."""


def format_name(dtype: torch.dtype) -> str:
    """As config files spell it: bfloat16."""
    return str(dtype).removeprefix("torch.")


class _Safetensors:
    """A safetensors file. Each tensor is read from the memory-mapped file when it is asked for.

    The file is opened once: a header of megabytes would take a second for every tensor that it names.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with damage_named(file):
            self._opened: Any = safe_open(file, framework="pt")
            self.names = list(self._opened.keys())

    def content(self, name: str) -> Tensor:
        """Return the tensor as the file holds it."""
        with damage_named(self.file):
            return self._opened.get_tensor(name)

    def header(self, name: str) -> Tensor:
        """Return a tensor of the same shape and format without content, on the meta device."""
        with damage_named(self.file):
            header = self._opened.get_slice(name)
            dtype = _HEADER_FORMATS.get(header.get_dtype(), torch.int8)
            return torch.empty(header.get_shape(), dtype=dtype, device="meta")


class _Pickled:
    """A file of torch.save, read as tensors only: torch refuses a pickle that would call anything else.

    It is memory-mapped, but for the format from before torch 1.6, which is read as a whole.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._tensors = _unpickled(file)
        self.names = list(self._tensors)

    def content(self, name: str) -> Tensor:
        """Return the tensor as the file holds it."""
        return self._tensors[name]

    def header(self, name: str) -> Tensor:
        """Return a tensor of the same shape and format without content, on the meta device."""
        return torch.empty_like(self._tensors[name], device="meta")


def _unpickled(file: Path) -> dict[str, Tensor]:
    with damage_named(file), warnings.catch_warnings(action="ignore"):
        with file.open("rb") as opened:
            is_zip = opened.read(4) == b"PK\x03\x04"
        try:
            held = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL ([\w.]+)", str(error))
            more = f"names {found[1]}" if found else "holds more than tensors"
            raise UserError(
                f"{file}: not read: its pickle {more}, which could run code; allowed: tensors by name, as "
                "model.state_dict() gives them"
            ) from None
        except Exception as error:  # whatever a damaged pickle makes of torch's reader
            raise ValueError(f"{type(error).__name__}: {error}") from None
    tensors = held if isinstance(held, Mapping) else {}
    if not tensors or not all(isinstance(name, str) and _is_plain(value) for name, value in tensors.items()):
        raise UserError(f"{file}: holds something else; allowed: tensors by name, as model.state_dict() gives them")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


_FORMS = ((WEIGHTS, INDEX, _Safetensors), (PICKLED, PICKLED_INDEX, _Pickled))
"""One file, the index of several, and what reads them. The first one in a folder is read, as transformers does."""


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name."""

    def __init__(self, folder: Path, shapes_only: bool = False) -> None:
        """If `shapes_only`, tensors have no content and are on the meta device."""
        self._file_of = dict(_tensor_files(folder))
        self._shapes_only = shapes_only

    def content(self, name: str) -> Tensor:
        """Return the tensor as the file holds it."""
        return self._file_of[name].content(name)

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].header(name) if self._shapes_only else self.content(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def _tensor_files(folder: Path) -> Iterator[tuple[str, _Safetensors | _Pickled]]:
    """Yield (tensor, file). Raise UserError if an index and the files disagree."""
    names = [name for form in _FORMS for name in form[:2]]
    here = next((name for name in names if (folder / name).is_file()), None)
    if here is None:
        raise UserError(f"{folder}: no weights; allowed: {', '.join(names)}")
    _, index_name, read = next(form for form in _FORMS if here in form)
    index: dict[str, Any] = {}
    if here == index_name:
        index = read_json(folder / here, LARGE_TEXT_LIMIT).get("weight_map") or {}
        if not isinstance(index, dict) or not index:
            raise UserError(f"{folder / here}: has no weight_map")
    seen: dict[str, str] = {}
    for name in sorted({str(name) for name in index.values()} or {here}):
        file = own_file(folder, name)
        if not file.is_file():
            raise UserError(f"{file}: missing, but {here} names it")
        held = read(file)
        if twice := [f"{tensor} is in {seen[tensor]} as well" for tensor in held.names if tensor in seen]:
            raise UserError(f"{file}: {twice[0]}")
        seen |= dict.fromkeys(held.names, name)
        yield from ((tensor, held) for tensor in held.names)
    if lost := [f"{tensor} in {name}" for tensor, name in index.items() if seen.get(tensor) != name]:
        raise UserError(f"{folder / here}: names what the files do not hold: {', '.join(lost[:8])}")


@contextmanager
def damage_named(file: Path) -> Iterator[None]:
    """A truncated or lying file as a UserError that names it."""
    try:
        yield
    except (SafetensorError, ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"{file}: damaged: {error}") from None
    except OSError as error:  # safetensors' own name no file
        raise UserError(f"{file}: {error.strerror or error}") from None


def write_folder(
    folder: Path, config: Raw, tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes]
) -> None:
    """Config, weights in files of at most SHARD_BYTES (with an index if several) and companions, all or nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists; name a new or an empty folder")
    with _full_disk_named(folder), folder_atomic(folder) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, content in companions.items():
            (temporary / name).write_bytes(content)
        _write_shards(temporary, tensors)


@contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    """What safetensors says of a full disk."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(f"{folder}: cannot write: {error}") from None


def _write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    shards: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        save_file(held, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if held and sum(t.numel() * t.element_size() for t in held.values()) + size > SHARD_BYTES:
            flush()
        held[name] = tensor.detach().contiguous().cpu()
        total += size
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / WEIGHTS)
        return
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": {}}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        index["weight_map"] |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps(index, indent=2))
