"""How a published file says that its weights are stored in few bits: MXFP4 (gpt-oss) or FP8 in blocks (DeepSeek-V3)."""

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
    """Four bits (E2M1) per number, and a power of two for every 32 of a row (OCP microscaling formats, 2023)."""

    quant_method: Literal["mxfp4"] = "mxfp4"
    modules_to_not_convert: Any = None
    """Modules that are stored as they are, which the tensors' names say as well."""
    suffixes: ClassVar = ("_blocks", "_scales")
    """Of the two tensors that stand for one."""


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

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """UserError where the weights could not be read."""
        method(hf.get("quantization_config"), hf.where)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Nothing: weights are written as they are."""
