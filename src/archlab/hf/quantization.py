"""Quantization settings in a published config.json: MXFP4 (gpt-oss) or FP8 in blocks (DeepSeek-V3)."""

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
    """Four bits (E2M1) per number; a power of two scales 32 numbers of a row (OCP Microscaling formats, 2023)."""

    quant_method: Literal["mxfp4"] = "mxfp4"
    modules_to_not_convert: Any = None
    """Modules that are not quantized. Not read, because the tensors' names say the same."""
    suffixes: ClassVar = ("_blocks", "_scales")
    """Name suffixes of the two tensors that store one weight: bits and scales."""


class BlockFP8(Base):
    """Eight bits (E4M3) per number, and one scale for a block of rows and columns (DeepSeek-V3, 2024)."""

    quant_method: Literal["fp8"] = "fp8"
    fmt: Literal["e4m3", "float8_e4m3fn"] = "e4m3"
    weight_block_size: Annotated[tuple[Width, Width], Field(strict=False)] = (128, 128)
    """Rows and columns of a block. Blocks at the edges may be smaller."""
    scale_fmt: Literal["float", "ue8m0"] = "float"
    """Whether scales are powers of two. Not read, because each tensor has its own dtype."""
    expert_dtype: Literal["fp8"] = "fp8"
    activation_scheme: Literal["dynamic"] = "dynamic"
    """How fast inference code quantizes activations. archlab does not quantize them."""
    dequantize: bool = False
    modules_to_not_convert: Any = None
    modules_to_convert: Any = None
    ignored_layers: Any = None
    suffixes: ClassVar = ("", "_scale_inv")


Method = MXFP4 | BlockFP8

_METHODS: Mapping[str, type[MXFP4] | type[BlockFP8]] = {"mxfp4": MXFP4, "fp8": BlockFP8}


def method(quantization_config: object, where: str) -> Method | None:
    """Return the method in the `quantization_config` of a config.json. Raise UserError for any other method."""
    if quantization_config is None:
        return None
    values: Raw = quantization_config if isinstance(quantization_config, dict) else {}
    name = values.get("quant_method", quantization_config)
    if not isinstance(name, str) or name not in _METHODS or not values:
        raise UserError(f"{where}: quantization_config is {name!r}; allowed: quant_method {' or '.join(_METHODS)}")
    return validate(_METHODS[name], values, f"{where}, quantization_config")


@dataclass(frozen=True)
class Quantization:
    """The key `quantization_config`, which says how weights are stored. It does not change the architecture."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if archlab cannot read the weights."""
        method(hf.get("quantization_config"), hf.where)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write nothing, because weights are not quantized when they are saved."""
