"""Hugging Face folders: config.json, safetensors in one file or in shards. Never pickle, never outside the folder."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archlab.config.merge import Raw
from archlab.errors import UserError
from archlab.files import folder_atomic

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Where a new file begins."""

COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files that go along unread."""


def read_json(file: Path) -> Raw:
    """A JSON object; UserError that names the file."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected an object, found {type(value).__name__}")
    return value


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read from its memory-mapped file when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._file_of = dict(_tensor_files(folder))

    def __getitem__(self, name: str) -> Tensor:
        file = self._file_of[name]
        with damage_named(file), safe_open(file, framework="pt") as opened:
            return opened.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def _tensor_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(tensor, file); what an index says must be what the files hold."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict):
            raise UserError(f"{folder / INDEX}: has no weight_map")
        files = {str(name) for name in index.values()}
        outside = sorted(n for n in files if PurePath(n).name != n or (folder / n).resolve().parent != folder.resolve())
        if outside:
            raise UserError(f"{folder / INDEX}: names {outside[0]!r}, which is not a file of this folder")
    elif (folder / WEIGHTS).is_file():
        files = {WEIGHTS}
    else:
        pickled = [p.name for p in folder.glob("*.bin")]
        hint = f"; {pickled[0]} is a pickle, which can run code: convert it to safetensors" if pickled else ""
        raise UserError(f"{folder}: no {WEIGHTS} and no {INDEX}{hint}")
    for name in sorted(files):
        file = folder / name
        if not file.is_file():
            raise UserError(f"{file}: missing, but {INDEX} names it")
        with damage_named(file), safe_open(file, framework="pt") as opened:
            yield from ((tensor, file) for tensor in opened.keys())  # noqa: SIM118 - not a mapping


@contextmanager
def damage_named(file: Path) -> Iterator[None]:
    """A truncated or lying file as a UserError that names it."""
    try:
        yield
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UserError(f"{file}: damaged: {error}") from None


def write_folder(
    folder: Path, config: Raw, tensors: Iterable[tuple[str, Tensor]], companions: Mapping[str, bytes]
) -> None:
    """Config, weights in files of at most SHARD_BYTES (with an index if several) and companions, all or nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists; name a new or an empty folder")
    with folder_atomic(folder) as temporary:
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name, content in companions.items():
            (temporary / name).write_bytes(content)
        _write_shards(temporary, tensors)


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
