"""Weights that are stored in few bits, undone while they are read.

A family's table sees ordinary tensors under ordinary names. Each number is that of the file times the scale of its
block, rounded to the format that is asked for.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from archlab.errors import UserError
from archlab.hf.quantization import MXFP4, BlockFP8, Method
from archlab.hf.tensors import Tensors, format_name

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.bfloat16)
_FOUR_BITS = torch.cat((_E2M1, -_E2M1))
_BYTES = torch.stack((_FOUR_BITS.repeat(16), _FOUR_BITS.repeat_interleave(16)), dim=1)
"""[256, 2]: the two numbers of a byte, the lower four bits first."""


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
        shape = _shape(self._how, bits, scales)
        if shape is None:
            found = " and ".join(f"{format_name(t.dtype)} {list(t.shape)}" for t in (bits, scales))
            raise UserError(f"{' and '.join(self._pairs[name])}: {found}, which is not {self._how.quant_method}")
        whole = torch.empty(shape, dtype=self._dtype, device=bits.device)
        if not whole.is_meta:
            _undo(self._how, bits, scales, whole)
        return whole


def _shape(how: Method, bits: Tensor, scales: Tensor) -> tuple[int, ...] | None:
    """Of what both stand for; None where they do not fit each other. MXFP4: [experts, out, in / 32, 16] of two numbers
    each, and [experts, out, in / 32] -> [experts, in, out]. FP8: [..., rows, columns], and a scale per block -> the
    same [..., rows, columns]."""
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


def _undo(how: Method, bits: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write the numbers, a small part at a time."""
    match how:
        case MXFP4():
            _undo_mxfp4(bits, scales, out)
        case BlockFP8():
            _undo_fp8(how, bits, scales, out)


def _undo_mxfp4(bits: Tensor, scales: Tensor, out: Tensor) -> None:
    """One expert after the other; bfloat16 holds both factors and their product exactly."""
    for expert in range(len(out)):
        values = F.embedding(bits[expert].int(), _BYTES).flatten(-2)
        out[expert] = (values * _scale(scales[expert]).bfloat16()[..., None]).flatten(-2).T


def _undo_fp8(how: BlockFP8, bits: Tensor, scales: Tensor, out: Tensor) -> None:
    """One row of blocks after the other."""
    height, width = how.weight_block_size
    wide = torch.promote_types(out.dtype, torch.float32)
    for i, scale in enumerate(_scale(scales).unbind(-2)):
        rows = slice(i * height, (i + 1) * height)
        by_column = scale.to(wide).repeat_interleave(width, -1)[..., None, : bits.shape[-1]]
        out[..., rows, :] = bits[..., rows, :].to(wide) * by_column


def _scale(stored: Tensor) -> Tensor:
    """In float32; a byte is the exponent of two, 127 more than it means."""
    return (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()
