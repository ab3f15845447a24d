"""Quantization settings in a published config.json: MXFP4 (gpt-oss), block-wise FP8 (DeepSeek-V3), GPTQ or AWQ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archlab.config.check import validate
from archlab.config.core.base import Base, Width
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.hf.fields import ConfigReader


class MXFP4(Base):
    """MXFP4 quantization: 4 bits (format E2M1) per weight.

    Each block of 32 weights in a row shares a scale, which is a power of two (OCP Microscaling formats, 2023).
    """

    quant_method: Literal["mxfp4"] = "mxfp4"
    ignored: ClassVar = frozenset({"modules_to_not_convert"})
    """Keys that do not change the weights. The suffixes of tensor names show which weights are quantized."""
    suffixes: ClassVar = ("_blocks", "_scales")
    """Name suffixes of the tensors that store one weight: the packed bits first."""
    result: ClassVar = ""
    """Name suffix of the dequantized weight."""


class BlockFP8(Base):
    """Block-wise FP8: 8 bits (format E4M3) per weight, and one scale per rectangular block of the matrix (DeepSeek-V3,
    2024)."""

    quant_method: Literal["fp8"] = "fp8"
    fmt: Literal["e4m3", "float8_e4m3fn"] = "e4m3"
    weight_block_size: Annotated[tuple[Width, Width], Field(strict=False)] = (128, 128)
    """Number of rows and columns of a block. Blocks at the edges of a matrix may be smaller."""
    scale_fmt: Literal["float", "ue8m0"] = "float"
    """Number format of the scales, for example ue8m0 for powers of two.

    archlab ignores this key and uses the dtype of the tensors that contain the scales.
    """
    expert_dtype: Literal["fp8"] = "fp8"
    activation_scheme: Literal["dynamic"] = "dynamic"
    """How inference code quantizes activations. It has no effect here, because archlab does not quantize
    activations."""
    dequantize: bool = False
    ignored: ClassVar = frozenset(
        {"modules_to_not_convert", "modules_to_convert", "packed_modules_mapping", "ignored_layers"}
    )
    suffixes: ClassVar = ("", "_scale_inv")
    result: ClassVar = ""


GroupSize = Literal[-1] | Width
"""Number of inputs of an output that share a scale and a zero point. -1: all inputs."""


class GPTQ(Base):
    """GPTQ: 2, 3, 4 or 8 bits per weight, with a scale and a zero point per group of inputs (Frantar et al. 2023)."""

    quant_method: Literal["gptq"] = "gptq"
    bits: Literal[2, 3, 4, 8]
    group_size: GroupSize
    checkpoint_format: Literal["gptq", "gptq_v2"] = "gptq"
    """`gptq` stores zero points minus 1, and `gptq_v2` stores them as they are."""
    is_marlin_format: Literal[False] = False
    pack_dtype: Literal["int32"] = "int32"
    """Integers that contain the numbers."""
    dynamic: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    """Modules with other settings, which archlab does not support."""
    ignored: ClassVar = frozenset(
        {
            *("backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment"),
            *(
                "damp_percent",
                "dataset",
                "desc_act",
                "disable_exllama",
                "exllama_config",
                "lm_head",
                "max_input_length",
            ),
            *("meta", "model_file_base_name", "model_name_or_path", "model_seqlen", "modules_in_block_to_quantize"),
            *("module_name_preceding_first_block", "mse", "pad_token_id", "quantizer", "static_groups", "sym"),
            *("tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama"),
        }
    )
    suffixes: ClassVar = (".qweight", ".qzeros", ".scales", ".g_idx")
    result: ClassVar = ".weight"


class AWQ(Base):
    """AWQ in AutoAWQ's layout `gemm`: 4 bits per weight, with a scale and a zero point per group of inputs (Lin et al.
    2023)."""

    quant_method: Literal["awq"] = "awq"
    bits: Literal[4]
    group_size: GroupSize
    version: Literal["gemm", "GEMM"] = "gemm"
    zero_point: Literal[True] = True
    ignored: ClassVar = frozenset(
        {"modules_to_not_convert", "backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"}
    )
    suffixes: ClassVar = (".qweight", ".qzeros", ".scales")
    result: ClassVar = ".weight"


Method = MXFP4 | BlockFP8 | GPTQ | AWQ

_METHODS: Mapping[str, type[Method]] = {"mxfp4": MXFP4, "fp8": BlockFP8, "gptq": GPTQ, "awq": AWQ}


def method(quantization_config: object, where: str) -> Method | None:
    """Return the quantization method in the `quantization_config` of a config.json.

    Raise UserError for an unsupported method.
    """
    if quantization_config is None:
        return None
    values: Raw = quantization_config if isinstance(quantization_config, dict) else {}
    name = values.get("quant_method", quantization_config)
    if not isinstance(name, str) or name not in _METHODS or not values:
        raise UserError(f"{where}: quantization_config is {name!r}; allowed: quant_method {', '.join(_METHODS)}")
    scheme = _METHODS[name]
    known = {key: value for key, value in values.items() if key not in scheme.ignored}
    return validate(scheme, known, f"{where}, quantization_config")


@dataclass(frozen=True)
class Quantization:
    """The key `quantization_config`, which says how the weights are stored. It does not change the architecture."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if archlab cannot read weights that are quantized in this way."""
        method(hf.get("quantization_config"), hf.where)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key, because archlab saves weights without quantization."""
