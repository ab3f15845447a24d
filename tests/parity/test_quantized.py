"""Quantized weights, compared with numbers computed one by one in float64 and with transformers' own code."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf
from archlab.hf.dequantize import Dequantized
from archlab.hf.quantization import BlockFP8, Method, method
from archlab.hf.tensors import Tensors
from tests.parity.cases import CASES
from tests.parity.tiny import Case, tiny_model

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [7, 10]}

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


WIDE_LLAMA = Case(
    "llama",
    "with widths that groups of 32 divide",
    {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
)


def drawn(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    """Return random bytes, always the same for a shape."""
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def read(
    folder: Path, tensors: dict[str, Tensor], how: Method | None, dtype: torch.dtype | None = torch.bfloat16
) -> Dequantized:
    assert how is not None
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = Dequantized(Tensors(folder), how, dtype)
    headers = Dequantized(Tensors(folder, shapes_only=True), how, dtype)
    assert list(found) == list(headers)
    for name in found:
        assert (found[name].shape, found[name].dtype) == (headers[name].shape, headers[name].dtype)
        assert headers[name].is_meta
        assert torch.equal(headers.content(name), found[name])
    return found


def from_four_bits(bits: int) -> float:
    """Decode E2M1: a sign, two bits of exponent with bias 1, one bit of mantissa. Exponent 0 is subnormal."""
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return -size if sign else size


def test_mxfp4_is_dequantized_exactly(tmp_path: Path) -> None:
    """Test every byte with every scale that gives finite numbers."""
    blocks = torch.arange(256, dtype=torch.uint8).repeat(253 * 2).reshape(2, 253, 16, 16)
    scales = torch.arange(253, dtype=torch.uint8)[None, :, None].repeat(2, 1, 16)
    scales[1] = scales[1].flip(0)
    stored = {
        "experts.down_proj_blocks": blocks,
        "experts.down_proj_scales": scales,
        "experts.down_proj_bias": drawn(3),
    }
    found = read(tmp_path, stored, method({"quant_method": "mxfp4"}, ""))
    assert sorted(found) == ["experts.down_proj", "experts.down_proj_bias"]
    halves = np.array([[from_four_bits(byte & 15), from_four_bits(byte >> 4)] for byte in range(256)])
    wanted = halves[blocks.numpy()].reshape(2, 253, 16, 32) * 2.0 ** (
        scales.numpy()[..., None].astype(np.float64) - 127
    )
    assert np.array_equal(found["experts.down_proj"].double().numpy(), wanted.reshape(2, 253, 512).transpose(0, 2, 1))
    assert torch.equal(found["experts.down_proj"], convert_moe_packed_tensors(blocks, scales))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", ["float32", "bfloat16", "bytes"])
@pytest.mark.parametrize(
    ("shape", "block"), [((256, 384), (128, 128)), ((300, 200), (128, 128)), ((5, 3), (128, 128)), ((12, 20), (3, 20))]
)
def test_fp8_is_dequantized_block_by_block_up_to_ragged_edges(
    shape: tuple[int, int], block: tuple[int, int], scale: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    rows, columns = shape
    byte = drawn(rows, columns)
    bits = byte.where(byte & 127 < 127, byte & 128).view(torch.float8_e4m3fn)  # without NaN
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    exponents = drawn(*grid, low=100, high=140)
    generator = torch.Generator().manual_seed(0)
    scales = {
        "float32": torch.rand(grid, generator=generator) * 1e-3,
        "bfloat16": (torch.rand(grid, generator=generator) * 1e-3).bfloat16(),
        "bytes": exponents,
    }[scale]
    plain = torch.ones(3).bfloat16()
    stored = {"a.weight": bits, "a.weight_scale_inv": scales, "a.bias": plain, "b.weight": plain + 1}
    found = read(tmp_path, stored, BlockFP8(weight_block_size=block), dtype)
    assert sorted(found) == ["a.bias", "a.weight", "b.weight"]
    factors = 2.0 ** (scales.double() - 127) if scale == "bytes" else scales.double()
    block_rows, block_columns = (torch.arange(n) // size for n, size in zip(shape, block, strict=True))
    wanted = bits.double() * factors[block_rows][:, block_columns]
    assert torch.equal(found["a.weight"], wanted.float().to(dtype))
    if rows % block[0] == columns % block[1] == 0:  # transformers supports whole blocks only
        theirs = Fp8Dequantize(None)._dequantize_one(bits, scales, output_dtype=dtype)
        assert torch.equal(found["a.weight"], theirs)


def words_of(numbers: np.ndarray, bits: int) -> Tensor:
    """Return rows of numbers as rows of 32-bit words: one long integer per row, in pieces of 32 bits."""
    whole = [sum(int(number) << bits * i for i, number in enumerate(row)) for row in numbers]
    count = numbers.shape[1] * bits // 32
    words = [[row >> 32 * i & 0xFFFFFFFF for i in range(count)] for row in whole]
    return torch.tensor(np.array(words, dtype=np.uint32).view(np.int32))


def groups_of(n_in: int, size: int, seed: int, width: int, bits: int) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Return random numbers [in, out], and zero points and scales in float16 of each group [groups, out]."""
    draw, n = np.random.default_rng(seed), n_in // size
    numbers = draw.integers(0, 2**bits, (n_in, width))
    zeros = draw.integers(1, 2**bits, (n, width))
    return numbers, zeros, torch.tensor(draw.uniform(1e-3, 1e-2, (n, width))).half()


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored_as", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_is_dequantized_exactly(bits: int, stored_as: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    n_in, size, n_out = 2112, 32, 64  # more inputs than are converted at once
    numbers, zeros, scales = groups_of(n_in, size, bits, n_out, bits)
    order = np.random.default_rng(9).permutation(np.arange(n_in) // size)
    stored = {
        "a.qweight": words_of(numbers.T, bits).T.contiguous(),
        "a.qzeros": words_of(zeros - (stored_as == "gptq"), bits),
        "a.scales": scales,
        "a.g_idx": torch.tensor(order, dtype=torch.int32),
        "a.bias": torch.ones(n_out),
    }
    settings = {**GPTQ, "bits": bits, "checkpoint_format": stored_as}
    found = read(tmp_path, stored, method(settings, ""), dtype)
    assert sorted(found) == ["a.bias", "a.weight"]
    wanted = (numbers - zeros[order]) * scales.double().numpy()[order]
    assert torch.equal(found["a.weight"], torch.tensor(wanted.T).to(dtype or torch.float16))


def test_awq_is_dequantized_exactly(tmp_path: Path) -> None:
    """AutoAWQ puts output i of eight at place `packed_at[i]` of a word (the layout `gemm`)."""
    packed_at = [0, 4, 1, 5, 2, 6, 3, 7]
    numbers, zeros, scales = groups_of(2112, 32, 1, 64, 4)

    def packed(rows: np.ndarray) -> Tensor:
        mixed = np.empty_like(rows)
        for i, place in enumerate(packed_at):
            mixed[:, place::8] = rows[:, i::8]
        return words_of(mixed, 4)

    stored = {"a.qweight": packed(numbers), "a.qzeros": packed(zeros), "a.scales": scales}
    found = read(tmp_path, stored, method(AWQ, ""), None)
    assert list(found) == ["a.weight"]
    by_input = np.arange(2112) // 32
    wanted = (numbers - zeros[by_input]) * scales.double().numpy()[by_input]
    assert torch.equal(found["a.weight"], torch.tensor(wanted.T).half())


def gptq(folder: Path, **changed: Tensor) -> dict[str, Tensor]:
    """Save a tiny Llama whose MLPs are stored as 4-bit GPTQ. Return its tensors after dequantization."""
    model = tiny_model(WIDE_LLAMA)
    model.half().save_pretrained(folder)
    stored, dequantized = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, tensor in list(stored.items()):
        dequantized[name] = tensor
        if ".mlp." in name:
            n_out, n_in = tensor.shape
            base = name.removesuffix(".weight")
            numbers, zeros, scales = groups_of(n_in, 32, len(name), n_out, 4)
            by_input = np.arange(n_in) // 32
            del stored[name]
            stored |= {
                f"{base}.qweight": words_of(numbers.T, 4).T.contiguous(),
                f"{base}.qzeros": words_of(zeros - 1, 4),
                f"{base}.scales": scales,
                f"{base}.g_idx": torch.tensor(by_input, dtype=torch.int32),
                f"{base}.bias": torch.zeros(n_out).half(),
            }
            dequantized[name] = torch.tensor(
                ((numbers - zeros[by_input]) * scales.double().numpy()[by_input]).T.copy()
            ).half()
    stored |= {f"model.layers.0.mlp.up_proj.{part}": value for part, value in changed.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, quantization_config=GPTQ)
    return dequantized


def test_a_model_in_gptq_equals_the_model_of_its_dequantized_tensors(tmp_path: Path) -> None:
    dequantized = gptq(tmp_path / "few")
    shutil.copytree(tmp_path / "few", tmp_path / "plain")
    save_file(dequantized, tmp_path / "plain" / "model.safetensors")
    change(tmp_path / "plain", quantization_config=None)
    assert check_hf(tmp_path / "few") == []
    few, plain = load_hf(tmp_path / "few"), load_hf(tmp_path / "plain")
    assert few.config == plain.config
    for name, parameter in plain.named_parameters():
        assert torch.equal(few.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("bias", torch.ones(96).half(), "mlp.up_proj.bias  surplus"),
        (
            "qzeros",
            torch.full((2, 12), -1, dtype=torch.int32),
            "a zero point is stored as 15, which some programs read",
        ),
        ("g_idx", torch.full((64,), 2, dtype=torch.int32), "g_idx names a group that does not exist; allowed: 0 to 1"),
        ("g_idx", torch.zeros(63, dtype=torch.int32), "do not fit gptq"),
    ],
)
def test_gptq_that_is_wrong_is_refused(part: str, value: Tensor, message: str, tmp_path: Path) -> None:
    gptq(tmp_path, **{part: value})
    with pytest.raises(UserError) as caught:
        load_hf(tmp_path)
    assert message in str(caught.value)


def quantized(folder: Path, **how: Any) -> dict[str, Tensor]:
    """Save a tiny Qwen 3 whose layer matrices are stored as FP8 in blocks. Return the dequantized tensors."""
    model = tiny_model(next(case for case in CASES if case.model_type == "qwen3"))
    model.bfloat16().save_pretrained(folder)
    stored, dequantized = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, tensor in list(stored.items()):
        if name.endswith("proj.weight"):
            grid = [-(-n // size) for n, size in zip(tensor.shape, FP8["weight_block_size"], strict=True)]
            scales = 0.5 + torch.rand(grid, generator=torch.Generator().manual_seed(len(name)))
            stored[name], stored[f"{name}_scale_inv"] = tensor.to(torch.float8_e4m3fn), scales
            whole = scales.repeat_interleave(7, 0).repeat_interleave(10, 1)[: tensor.shape[0], : tensor.shape[1]]
            dequantized[name] = (stored[name].float() * whole).bfloat16()
        else:
            dequantized[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, quantization_config={**FP8, **how})
    return dequantized


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_model_in_fp8_equals_the_model_of_its_dequantized_tensors(tmp_path: Path) -> None:
    dequantized = quantized(tmp_path / "few")
    shutil.copytree(tmp_path / "few", tmp_path / "plain")
    save_file(dequantized, tmp_path / "plain" / "model.safetensors")
    change(tmp_path / "plain", quantization_config=None)
    few, plain = load_hf(tmp_path / "few"), load_hf(tmp_path / "plain")
    assert check_hf(tmp_path / "few") == []
    assert few.config == plain.config
    for name, parameter in plain.named_parameters():
        assert torch.equal(few.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"quant_method": "hqq"}, "quantization_config is 'hqq'; allowed: quant_method mxfp4, fp8, gptq, awq"),
        ({"bits": 4}, "quantization_config is {'bits': 4}; allowed: quant_method mxfp4, fp8, gptq, awq"),
        ("fp8", "quantization_config is 'fp8'; allowed: quant_method mxfp4, fp8, gptq, awq"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 8}, "bits  5; allowed: 2, 3, 4 or 8"),
        ({**GPTQ, "dynamic": {"lm_head": {"bits": 8}}}, "dynamic"),
        ({**GPTQ, "rotation": "hadamard"}, "rotation  unknown"),
        ({**AWQ, "version": "gemv"}, "version  'gemv'; did you mean GEMM?"),
        ({**FP8, "activation_scheme": "static"}, "activation_scheme  'static'; allowed: dynamic"),
        ({**FP8, "weight_block_size": None}, "weight_block_size  null; allowed: a list"),
        ({**FP8, "weight_block_size": [8, 10]}, "proj.weight_scale_inv: float8_e4m3fn"),
        ({**FP8, "expert_dtype": "fp4"}, "expert_dtype  'fp4'; did you mean fp8?"),
        ({**FP8, "zero_point": True}, "zero_point  unknown; allowed: quant_method"),
        (None, "has dtype float8_e4m3fn; allowed: float32"),
    ],
)
def test_an_unsupported_quantization_is_refused_by_name(how: Any, message: str, tmp_path: Path) -> None:
    quantized(tmp_path)
    change(tmp_path, quantization_config=how)
    with pytest.raises(UserError) as caught:
        load_hf(tmp_path)
    assert message in str(caught.value)
    assert message in "\n".join(check_hf(tmp_path))
