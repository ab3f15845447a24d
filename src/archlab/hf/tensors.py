"""The weights of Hugging Face folders: safetensors in one file or in shards, never pickle."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archlab.config.merge import Raw
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, folder_atomic
from archlab.hf.folder import CONFIG, INDEX, WEIGHTS, own_file, read_json

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


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read from its memory-mapped file when it is asked for."""

    def __init__(self, folder: Path, shapes_only: bool = False) -> None:
        """`shapes_only`: tensors without content, on the meta device."""
        self._file_of = dict(_tensor_files(folder))
        self._shapes_only = shapes_only
        self._opened: dict[Path, Any] = {}
        """Each file is opened once: a header of megabytes would take a second for every tensor that it names."""

    def content(self, name: str) -> Tensor:
        """The tensor as the file holds it."""
        with damage_named(self._file_of[name]):
            return self._holder_of(name).get_tensor(name)

    def _holder_of(self, name: str) -> Any:
        file = self._file_of[name]
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file]

    def __getitem__(self, name: str) -> Tensor:
        if not self._shapes_only:
            return self.content(name)
        with damage_named(self._file_of[name]):
            header = self._holder_of(name).get_slice(name)
            dtype = _HEADER_FORMATS.get(header.get_dtype(), torch.int8)
            return torch.empty(header.get_shape(), dtype=dtype, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def _tensor_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(tensor, file); what an index says must be what the files hold."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX, LARGE_TEXT_LIMIT).get("weight_map")
        if not isinstance(index, dict):
            raise UserError(f"{folder / INDEX}: has no weight_map")
    elif (folder / WEIGHTS).is_file():
        index = {}
    else:
        pickled = [p.name for p in folder.glob("*.bin")]
        hint = f"; {pickled[0]} is a pickle, which can run code: convert it to safetensors" if pickled else ""
        raise UserError(f"{folder}: no {WEIGHTS} and no {INDEX}{hint}")
    seen: dict[str, str] = {}
    for name in sorted({str(name) for name in index.values()} or {WEIGHTS}):
        file = own_file(folder, name)
        if not file.is_file():
            raise UserError(f"{file}: missing, but {INDEX} names it")
        with damage_named(file), safe_open(file, framework="pt") as opened:
            held = list(opened.keys())
        if twice := [f"{tensor} is in {seen[tensor]} as well" for tensor in held if tensor in seen]:
            raise UserError(f"{file}: {twice[0]}")
        seen |= dict.fromkeys(held, name)
        yield from ((tensor, file) for tensor in held)
    if lost := [f"{tensor} in {name}" for tensor, name in index.items() if seen.get(tensor) != name]:
        raise UserError(f"{folder / INDEX}: names what the files do not hold: {', '.join(lost[:8])}")


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
