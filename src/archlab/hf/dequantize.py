"""Conversion of quantized weights to ordinary tensors while a Hugging Face folder is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from archlab.errors import UserError
from archlab.hf.quantization import AWQ, GPTQ, MXFP4, BlockFP8, Method
from archlab.hf.tensors import Tensors, format_name

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.bfloat16)
_FOUR_BITS = torch.cat((_E2M1, -_E2M1))
_BYTES = torch.stack((_FOUR_BITS.repeat(16), _FOUR_BITS.repeat_interleave(16)), dim=1)
"""Table [256, 2] with the two MXFP4 numbers that each byte value stores. The first number is in the lower four bits."""

_WORD = 32
"""Number of bits in an integer of GPTQ and AWQ, which contains several numbers."""

_AWQ_ORDER = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Place in its word of each of eight numbers in a row, as AutoAWQ's layout `gemm` stores them."""

_ROWS_AT_ONCE = 1024
"""Number of input features that are converted together, which bounds the memory."""


class Dequantized(Mapping[str, Tensor]):
    """Tensors of a folder by name. A quantized weight is stored as several tensors, such as bits and scales; it becomes
    one ordinary tensor.

    Each value is the stored number (minus its zero point) times the scale of its block or group, rounded to `dtype`. If
    `dtype` is None, GPTQ and AWQ keep the dtype of the scales, and the others become bfloat16. A tensor is read when it
    is requested, and it is converted in small parts. The peak memory is therefore little more than the size of the
    result.
    """

    def __init__(self, stored: Tensors, how: Method, dtype: torch.dtype | None) -> None:
        self._stored, self._how, self._dtype = stored, how, dtype
        marker = max(how.suffixes, key=len)
        bases = [name.removesuffix(marker) for name in stored if name.endswith(marker)]
        parts = {base + how.result: [base + suffix for suffix in how.suffixes] for base in bases}
        names = set(stored)
        self._parts = {name: part for name, part in parts.items() if names.issuperset(part)}
        used = {part for parts in self._parts.values() for part in parts}
        self._names = [*(name for name in stored if name not in used), *self._parts]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        return self._converted(name, self._stored.__getitem__)

    def content(self, name: str) -> Tensor:
        return self._converted(name, self._stored.content)

    def _converted(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        if name not in self._parts:
            return read(name)
        parts = [read(part) for part in self._parts[name]]
        shape = _shape(self._how, parts)
        if shape is None:
            found = " and ".join(f"{format_name(t.dtype)} {list(t.shape)}" for t in parts)
            raise UserError(f"{' and '.join(self._parts[name])}: {found} do not fit {self._how.quant_method}")
        tensor = torch.empty(shape, dtype=self._dtype or _dtype(self._how, parts), device=parts[0].device)
        if not tensor.is_meta:
            _dequantize(self._how, parts, tensor, name)
        return tensor


def _dtype(how: Method, parts: Sequence[Tensor]) -> torch.dtype:
    return parts[2].dtype if isinstance(how, GPTQ | AWQ) else torch.bfloat16


def _shape(how: Method, parts: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Return the shape of the dequantized tensor, or None if the shapes or dtypes of its parts are wrong.

    - MXFP4: a byte contains two numbers. The bits are [experts, out, in / 32, 16]. The scales are [experts, out,
      in / 32]. The result is [experts, in, out].
    - FP8: the bits are [..., rows, columns], as the result. There is one scale per block.
    - GPTQ: a word contains numbers of several inputs. The numbers are [in / numbers per word, out]. The zero points are
      [groups, out / numbers per word]. The scales are [groups, out]. The groups of the inputs are [in].
    - AWQ: a word contains numbers of eight outputs. The numbers are [in, out / 8]. The zero points are
      [groups, out / 8]. The scales are [groups, out].

    The result of GPTQ and AWQ is [out, in].
    """
    bits, scales = parts[0], parts[-1]
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
        case GPTQ() | AWQ():
            return _shape_of_words(how, parts)


def _shape_of_words(how: GPTQ | AWQ, parts: Sequence[Tensor]) -> tuple[int, int] | None:
    numbers, zeros, scales, *groups_of = parts
    if {numbers.dtype, zeros.dtype} != {torch.int32} or not scales.is_floating_point() or scales.dim() != 2:
        return None
    groups, n_out = scales.shape
    n_in = len(numbers) * _WORD // how.bits if isinstance(how, GPTQ) else len(numbers)
    packed = (len(numbers), n_out) if isinstance(how, GPTQ) else (n_in, n_out * how.bits / _WORD)
    fits = (
        numbers.shape == packed
        and zeros.shape == (groups, n_out * how.bits / _WORD)
        and groups == -(-n_in // (n_in if how.group_size == -1 else how.group_size))
        and all(t.shape == (n_in,) and t.dtype == torch.int32 for t in groups_of)
    )
    return (n_out, n_in) if fits else None


def _dequantize(how: Method, parts: Sequence[Tensor], out: Tensor, name: str) -> None:
    match how, parts:
        case MXFP4(), [bits, scales]:
            _dequantize_mxfp4(bits, scales, out)
        case BlockFP8(), [bits, scales]:
            _dequantize_fp8(how, bits, scales, out)
        case GPTQ(), [numbers, zeros, scales, groups]:
            _dequantize_gptq(how, numbers, zeros, scales, groups, out, name)
        case AWQ(), [numbers, zeros, scales]:
            _dequantize_awq(how, numbers, zeros, scales, out)
        case _:
            raise AssertionError


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


def _dequantize_gptq(
    how: GPTQ, numbers: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor, out: Tensor, name: str
) -> None:
    """Dequantize GPTQ. Raise UserError if a zero point has two readings, or if a group does not exist."""
    zero = _unpacked(zeros, how.bits)
    if how.checkpoint_format == "gptq":  # this format stores zero points minus 1
        if (zero == 2**how.bits - 1).any():
            raise UserError(
                f"{name}: a zero point is stored as {2**how.bits - 1}, which some programs read as 0 and others as "
                f"{2**how.bits}; allowed: checkpoint_format gptq_v2, which stores zero points as they are"
            )
        zero = zero + 1
    if not ((groups >= 0) & (groups < len(scales))).all():
        raise UserError(f"{name}: g_idx names a group that does not exist; allowed: 0 to {len(scales) - 1}")

    def numbers_at(here: slice) -> Tensor:
        words = numbers[here.start * how.bits // _WORD : here.stop * how.bits // _WORD]
        return _unpacked(words.T, how.bits).T

    _fill(numbers_at, zero, scales, groups, out)


def _dequantize_awq(how: AWQ, numbers: Tensor, zeros: Tensor, scales: Tensor, out: Tensor) -> None:
    zero = _in_order(_unpacked(zeros, how.bits))
    size = out.shape[1] if how.group_size == -1 else how.group_size
    groups = torch.arange(out.shape[1]) // size
    _fill(lambda here: _in_order(_unpacked(numbers[here], how.bits)), zero, scales, groups, out)


def _in_order(numbers: Tensor) -> Tensor:
    """Return numbers in the order of the outputs, [rows, out]."""
    return numbers.unflatten(-1, (-1, len(_AWQ_ORDER)))[..., _AWQ_ORDER].flatten(-2)


def _fill(numbers_at: Callable[[slice], Tensor], zero: Tensor, scales: Tensor, groups: Tensor, out: Tensor) -> None:
    """Write (number - zero) * scale to `out`, [out, in]. `numbers_at` returns the numbers of a range of inputs,
    [inputs, out]. The product is exact in float32 for scales of 16 bits, and it is rounded once."""
    wide = torch.promote_types(torch.promote_types(out.dtype, scales.dtype), torch.float32)
    for first in range(0, out.shape[1], _ROWS_AT_ONCE):
        here = slice(first, first + _ROWS_AT_ONCE)
        group = groups[here]
        out[:, here] = ((numbers_at(here) - zero[group]).to(wide) * scales[group].to(wide)).T


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the numbers of `bits` bits in rows of words, [rows, words], from the lowest bit of the first word on.
    Numbers of 3 bits can lie in two words."""
    first_bit = bits * torch.arange(words.shape[1] * _WORD // bits)
    word, shift = first_bit // _WORD, first_bit % _WORD
    unsigned = F.pad(words.long() & (2**_WORD - 1), (0, 1))
    both = unsigned[:, :-1] | unsigned[:, 1:] << _WORD
    return both[:, word] >> shift & (2**bits - 1)
