"""Reading of the tensors in a Hugging Face folder: from safetensors or torch.save files, from one file or several,
quantized or not.

Reading a file never runs code that it contains.
"""

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT
from archlab.hf.folder import INDEX, PICKLED, PICKLED_INDEX, WEIGHTS, own_file, read_json
from archlab.hf.quantization import MXFP4, BlockFP8, Method

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


_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.bfloat16)
_FOUR_BITS = torch.cat((_E2M1, -_E2M1))
_BYTES = torch.stack((_FOUR_BITS.repeat(16), _FOUR_BITS.repeat_interleave(16)), dim=1)
"""Table [256, 2] with the two MXFP4 numbers that each byte value stores. The first number is in the lower four bits."""


class Dequantized(Mapping[str, Tensor]):
    """Tensors of a folder by name. A quantized weight is stored as two tensors, bits and scales; it becomes one
    ordinary tensor.

    Each value is the stored number times the scale of its block, rounded to `dtype`. A tensor is read when it is
    requested, and it is converted in small parts. The peak memory is therefore little more than the size of the result.
    """

    def __init__(self, stored: Tensors, how: Method, dtype: torch.dtype) -> None:
        self._stored, self._how, self._dtype = stored, how, dtype
        bits, scales = how.suffixes
        scaled = [name.removesuffix(scales) for name in stored if name.endswith(scales)]
        pairs = {name: (name + bits, name + scales) for name in scaled}
        names = set(stored)
        self._pairs = {name: pair for name, pair in pairs.items() if names.issuperset(pair)}
        paired = {part for pair in self._pairs.values() for part in pair}
        self._names = [*(name for name in stored if name not in paired), *self._pairs]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        return self._converted(name, self._stored.__getitem__)

    def content(self, name: str) -> Tensor:
        return self._converted(name, self._stored.content)

    def _converted(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        if name not in self._pairs:
            return read(name)
        bits, scales = map(read, self._pairs[name])
        shape = _shape(self._how, bits, scales)
        if shape is None:
            found = " and ".join(f"{format_name(t.dtype)} {list(t.shape)}" for t in (bits, scales))
            raise UserError(f"{' and '.join(self._pairs[name])}: {found} do not fit {self._how.quant_method}")
        tensor = torch.empty(shape, dtype=self._dtype, device=bits.device)
        if not tensor.is_meta:
            _dequantize(self._how, bits, scales, tensor)
        return tensor


def _shape(how: Method, bits: Tensor, scales: Tensor) -> tuple[int, ...] | None:
    """Return the shape of the dequantized tensor, or None if the shapes or dtypes of bits and scales are wrong.

    MXFP4: the bits are [experts, out, in / 32, 16], with two numbers per byte; the scales are [experts, out, in / 32];
    the result is [experts, in, out]. FP8: the bits are [..., rows, columns], there is one scale per block, and the
    result has the shape of the bits.
    """
    match how:
        case MXFP4():
            if bits.dim() != 4 or bits.shape != (*scales.shape, 16) or {bits.dtype, scales.dtype} != {torch.uint8}:
                return None
            experts, rows, blocks, _ = bits.shape
            return experts, 32 * blocks, rows
        case BlockFP8():
            if bits.dim() < 2 or bits.dtype != torch.float8_e4m3fn:
                return None
            grid = [-(-n // size) for n, size in zip(bits.shape[-2:], how.weight_block_size, strict=True)]
            return tuple(bits.shape) if scales.shape == (*bits.shape[:-2], *grid) else None


def _dequantize(how: Method, bits: Tensor, scales: Tensor, out: Tensor) -> None:
    match how:
        case MXFP4():
            _dequantize_mxfp4(bits, scales, out)
        case BlockFP8():
            _dequantize_fp8(how, bits, scales, out)


def _dequantize_mxfp4(bits: Tensor, scales: Tensor, out: Tensor) -> None:
    """Dequantize MXFP4, one expert at a time. In bfloat16, the numbers, the scales and their products are all exact."""
    for expert in range(len(out)):
        values = F.embedding(bits[expert].int(), _BYTES).flatten(-2)
        out[expert] = (values * _scale(scales[expert]).bfloat16()[..., None]).flatten(-2).T


def _dequantize_fp8(how: BlockFP8, bits: Tensor, scales: Tensor, out: Tensor) -> None:
    height, width = how.weight_block_size
    wide = torch.promote_types(out.dtype, torch.float32)
    for i, scale in enumerate(_scale(scales).unbind(-2)):
        rows = slice(i * height, (i + 1) * height)
        by_column = scale.to(wide).repeat_interleave(width, -1)[..., None, : bits.shape[-1]]
        out[..., rows, :] = bits[..., rows, :].to(wide) * by_column


def _scale(stored: Tensor) -> Tensor:
    """Return the scales in float32. A scale that is stored as a byte b is 2^(b - 127)."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()
