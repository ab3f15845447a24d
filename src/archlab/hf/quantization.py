"""Quantization settings in a published config.json: MXFP4 (gpt-oss) or block-wise FP8 (DeepSeek-V3)."""

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
    modules_to_not_convert: Any = None
    """Modules that are not quantized. archlab ignores this list: the suffixes of tensor names show which weights are
    quantized."""
    suffixes: ClassVar = ("_blocks", "_scales")
    """Name suffixes of the two tensors that store one weight: the packed bits and the scales."""


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
    modules_to_not_convert: Any = None
    modules_to_convert: Any = None
    packed_modules_mapping: Any = None
    ignored_layers: Any = None
    suffixes: ClassVar = ("", "_scale_inv")


Method = MXFP4 | BlockFP8

_METHODS: Mapping[str, type[MXFP4] | type[BlockFP8]] = {"mxfp4": MXFP4, "fp8": BlockFP8}


def method(quantization_config: object, where: str) -> Method | None:
    """Return the quantization method in the `quantization_config` of a config.json.

    Raise UserError for an unsupported method.
    """
    if quantization_config is None:
        return None
    values: Raw = quantization_config if isinstance(quantization_config, dict) else {}
    name = values.get("quant_method", quantization_config)
    if not isinstance(name, str) or name not in _METHODS or not values:
        raise UserError(f"{where}: quantization_config is {name!r}; allowed: quant_method {' or '.join(_METHODS)}")
    return validate(_METHODS[name], values, f"{where}, quantization_config")


@dataclass(frozen=True)
class Quantization:
    """The key `quantization_config`, which says how the weights are stored. It does not change the architecture."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if archlab cannot read weights that are quantized in this way."""
        method(hf.get("quantization_config"), hf.where)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key, because archlab saves weights without quantization."""
