"""Weights that are stored in few bits, undone while they are read: MXFP4 (gpt-oss) and FP8 in blocks (DeepSeek-V3).

A family's table sees ordinary tensors under ordinary names. Each number is that of the file times the scale of its
block, rounded to the format that is asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from archlab.config.base import Base, Width
from archlab.config.check import validate
from archlab.config.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.hf.fields import Source
from archlab.hf.tensors import Tensors

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.bfloat16)
_FOUR_BITS = torch.cat((_E2M1, -_E2M1))
_BYTES = torch.stack((_FOUR_BITS.repeat(16), _FOUR_BITS.repeat_interleave(16)), dim=1)
"""[256, 2]: the two numbers of a byte, the lower four bits first."""


class MXFP4(Base):
    """Four bits (E2M1) per number, and a power of two for every 32 of a row (OCP microscaling formats, 2023)."""

    quant_method: Literal["mxfp4"] = "mxfp4"
    modules_to_not_convert: Any = None
    """Modules that are stored as they are, which the tensors' names say as well."""
    suffixes: ClassVar = ("_blocks", "_scales")
    """Of the two tensors that stand for one."""

    def shape(self, bits: Tensor, scales: Tensor) -> tuple[int, ...] | None:
        """[experts, out, in / 32, 16] of two numbers each, and [experts, out, in / 32] -> [experts, in, out]."""
        if bits.dim() != 4 or bits.shape != (*scales.shape, 16) or {bits.dtype, scales.dtype} != {torch.uint8}:
            return None
        experts, rows, blocks, _ = bits.shape
        return experts, 32 * blocks, rows

    def undo(self, bits: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write the numbers, one expert after the other; bfloat16 holds both factors and their product exactly."""
        for expert in range(len(out)):
            values = F.embedding(bits[expert].int(), _BYTES).flatten(-2)
            out[expert] = (values * _scale(scales[expert]).bfloat16()[..., None]).flatten(-2).T


class BlockFP8(Base):
    """Eight bits (E4M3) per number, and a scale per block of rows and columns (DeepSeek-V3, 2024)."""

    quant_method: Literal["fp8"] = "fp8"
    fmt: Literal["e4m3", "float8_e4m3fn"] = "e4m3"
    weight_block_size: Annotated[tuple[Width, Width], Field(strict=False)] = (128, 128)
    """Rows and columns of a block; those at the edges may be smaller."""
    scale_fmt: Literal["float", "ue8m0"] = "float"
    """Whether scales are powers of two; each tensor says itself how it is stored."""
    expert_dtype: Literal["fp8"] = "fp8"
    activation_scheme: Literal["dynamic"] = "dynamic"
    """How fast code rounds the activations as well. archlab leaves them as they are."""
    dequantize: bool = False
    modules_to_not_convert: Any = None
    modules_to_convert: Any = None
    ignored_layers: Any = None
    suffixes: ClassVar = ("", "_scale_inv")

    def shape(self, bits: Tensor, scales: Tensor) -> tuple[int, ...] | None:
        """[..., rows, columns], and a scale per block -> the same [..., rows, columns]."""
        if bits.dim() < 2 or bits.dtype != torch.float8_e4m3fn:
            return None
        grid = [-(-n // size) for n, size in zip(bits.shape[-2:], self.weight_block_size, strict=True)]
        return tuple(bits.shape) if scales.shape == (*bits.shape[:-2], *grid) else None

    def undo(self, bits: Tensor, scales: Tensor, out: Tensor) -> None:
        """Write the numbers, one row of blocks after the other."""
        height, width = self.weight_block_size
        wide = torch.promote_types(out.dtype, torch.float32)
        for i, scale in enumerate(_scale(scales).unbind(-2)):
            rows = slice(i * height, (i + 1) * height)
            by_column = scale.to(wide).repeat_interleave(width, -1)[..., None, : bits.shape[-1]]
            out[..., rows, :] = bits[..., rows, :].to(wide) * by_column


def _scale(stored: Tensor) -> Tensor:
    """In float32; a byte is the exponent of two, 127 more than it means."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()


Method = MXFP4 | BlockFP8


_METHODS: Mapping[str, type[MXFP4] | type[BlockFP8]] = {"mxfp4": MXFP4, "fp8": BlockFP8}


def method(given: object, where: str) -> Method | None:
    """What the `quantization_config` of a config.json asks for; UserError for what archlab cannot undo."""
    if given is None:
        return None
    values: Raw = given if isinstance(given, dict) else {}
    name = values.get("quant_method", given)
    if not isinstance(name, str) or name not in _METHODS or not values:
        raise UserError(f"{where}: quantization_config says {name!r}; allowed: quant_method {' or '.join(_METHODS)}")
    return validate(_METHODS[name], values, f"{where}, quantization_config")


@dataclass(frozen=True)
class Quantization:
    """The key of a config.json that says how weights are stored: the architecture is the same."""

    def read(self, hf: Source, ours: Raw) -> None:
        """UserError where the weights could not be read."""
        method(hf.get("quantization_config"), hf.where)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Nothing: weights are written as they are."""


class Dequantised(Mapping[str, Tensor]):
    """The tensors of a folder, where each pair of bits and scales is the one tensor that it stands for.

    One is read and undone when it is asked for, a small part at a time, so that little more than the result is held.
    """

    def __init__(self, stored: Tensors, how: Method, dtype: torch.dtype) -> None:
        self._stored, self._how, self._dtype = stored, how, dtype
        bits, scales = how.suffixes
        wholes = [name.removesuffix(scales) for name in stored if name.endswith(scales)]
        pairs = {name: (name + bits, name + scales) for name in wholes}
        names = set(stored)
        self._pairs = {name: pair for name, pair in pairs.items() if names.issuperset(pair)}
        held = {part for pair in self._pairs.values() for part in pair}
        self._names = [*(name for name in stored if name not in held), *self._pairs]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        """Without content where that of the folder has none."""
        return self._whole(name, self._stored.__getitem__)

    def content(self, name: str) -> Tensor:
        """The tensor as the file means it."""
        return self._whole(name, self._stored.content)

    def _whole(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        if name not in self._pairs:
            return read(name)
        bits, scales = map(read, self._pairs[name])
        shape = self._how.shape(bits, scales)
        if shape is None:
            found = " and ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (bits, scales))
            raise UserError(f"{' and '.join(self._pairs[name])}: {found}, which is not {self._how.quant_method}")
        whole = torch.empty(shape, dtype=self._dtype, device=bits.device)
        if not whole.is_meta:
            self._how.undo(bits, scales, whole)
        return whole
