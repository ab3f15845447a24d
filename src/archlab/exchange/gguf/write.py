"""Export of a model as a GGUF file for llama.cpp."""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture
from archlab.exchange.gguf.numbers import add_numbers, parameter_names
from archlab.exchange.gguf.registry import ARCHITECTURES, find_architecture
from archlab.exchange.gguf.settings import add_settings, rope_factors
from archlab.exchange.gguf.tensors import OUTPUT, ROPE_FACTORS
from archlab.exchange.gguf.vocabulary import add_vocabulary
from archlab.exchange.save import choose_family
from archlab.extras import needs_extra
from archlab.files import file_atomic, make_folder
from archlab.hf.rope import without_idle_scalings
from archlab.hf.weight_map import published_tensors
from archlab.model.decoder import Decoder

if TYPE_CHECKING:
    from gguf import GGUFWriter

Format = Literal["float32", "bfloat16", "float16"]

_WIDE = (
    "_norm.weight", "position_embd.weight", "ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d",
    "shortconv.conv.weight",
)  # fmt: skip
"""Name suffixes of matrices that llama.cpp reads in float32 only, like all vectors."""


def save_gguf(
    model: Decoder, file: Path, family: str | None = None, dtype: Format | None = None
) -> tuple[str, list[str]]:
    """Write the model and its tokenizer to a GGUF file. Return the name of the architecture, and notes for the user.

    The family is chosen as in `save_pretrained`, but only from those that llama.cpp runs. `dtype` is the dtype of the
    matrices. None means the model's own dtype, or float32 if that is float64. Raise a UserError that lists everything
    llama.cpp cannot run exactly.
    """
    if file.exists():
        raise UserError(f"{file}: already exists; name a new file")
    if model.config.encoder is not None:
        layers = f"{model.config.encoder.n_layers} layers"
        raise UserError(
            f"model.encoder: {layers}; archlab can write only models without an encoder (null) to a GGUF file"
        )
    # llama.cpp's activations are float32, so it does not matter where narrower models round them.
    chosen, _ = choose_family(model.config, family, model.origin.family, wide=True, candidates=ARCHITECTURES)
    architecture = find_architecture(chosen.model_type)
    config = without_idle_scalings(model.config)
    notes = architecture.check(config)
    make_folder(file.parent)
    with _errors_named(file), file_atomic(file) as temporary:
        notes += _write(model, config, architecture, temporary, _matrix_dtype(model, dtype))
    return architecture.name, notes


@contextmanager
def _errors_named(file: Path) -> Iterator[None]:
    try:
        yield
    except (struct.error, OverflowError) as error:
        raise UserError(f"{file}: cannot write: a number of the model is too large for a GGUF file ({error})") from None
    except OSError as error:  # NumPy's error for a full disk has no errno
        if error.errno is None:
            raise UserError(f"{file}: cannot write: the disk is full ({error})") from None
        raise


def _matrix_dtype(model: Decoder, dtype: Format | None) -> torch.dtype:
    own = next(model.parameters()).dtype
    return getattr(torch, dtype) if dtype else torch.float32 if own is torch.float64 else own


def _write(
    model: Decoder, config: ModelConfig, architecture: GGUFArchitecture, file: Path, dtype: torch.dtype
) -> list[str]:
    with needs_extra("gguf", "writing a GGUF file"):
        from gguf import GGUFWriter, LlamaFileType
    writer = GGUFWriter(file, architecture.name)
    kinds = {torch.bfloat16: LlamaFileType.MOSTLY_BF16, torch.float16: LlamaFileType.MOSTLY_F16}
    writer.add_file_type(kinds.get(dtype, LlamaFileType.ALL_F32))
    add_settings(writer, config, architecture)
    add_numbers(writer, architecture.numbers, model.state_dict(), config.n_layers)
    notes = add_vocabulary(writer, model.origin, config.vocab_size)
    for name, tensor in _tensors(model, config, architecture, "meta"):
        _announce(writer, name, tensor.to(_dtype_of(name, tensor, dtype)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in _tensors(model, config, architecture, "cpu"):
        writer.write_tensor_data(_bytes(_narrowed(name, tensor, _dtype_of(name, tensor, dtype))))
    writer.close()
    return notes


def _tensors(
    model: Decoder, config: ModelConfig, architecture: GGUFArchitecture, device: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) pairs, one at a time to save memory. With the device `meta`, the tensors have no content."""
    in_keys = parameter_names(architecture.numbers, config.n_layers)
    ours = {name: tensor.detach().to(device) for name, tensor in model.state_dict().items() if name not in in_keys}
    scaled = _Scaled(ours, architecture.factors(config))
    yield from published_tensors(architecture.rows, config, scaled, f"llama.cpp's {architecture.name}")
    if architecture.needs_output and config.head.tied:
        yield OUTPUT, ours["embedding.weight"]
    if (factors := rope_factors(config)) is not None:
        yield ROPE_FACTORS, factors.to(device)


class _Scaled(Mapping[str, Tensor]):
    """Parameters, of which some are multiplied by a factor when they are read.

    A tied head is written separately if its factor differs from that of the embedding.
    """

    def __init__(self, ours: Mapping[str, Tensor], factors: Mapping[str, float]) -> None:
        self._factors = factors
        has_own_head = factors.get("head.weight") != factors.get("embedding.weight")
        self._ours = {**({"head.weight": ours["embedding.weight"]} if has_own_head else {}), **ours}

    def __getitem__(self, name: str) -> Tensor:
        factor = self._factors.get(name, 1)
        return self._ours[name] if factor == 1 else self._ours[name].float() * factor

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours)

    def __len__(self) -> int:
        return len(self._ours)


def _dtype_of(name: str, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if tensor.dim() < 2 or name.endswith(_WIDE) else dtype


def _narrowed(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    out = tensor.to(dtype)
    if dtype is torch.float16 and not out.isfinite().all():
        largest = tensor.abs().max().item()
        raise UserError(f"{name}: contains {largest:.3g}; allowed in float16: up to 65504; use bfloat16")
    return out


def _announce(writer: "GGUFWriter", name: str, tensor: Tensor) -> None:
    from gguf import GGMLQuantizationType

    kinds = {
        torch.float32: GGMLQuantizationType.F32,
        torch.bfloat16: GGMLQuantizationType.BF16,
        torch.float16: GGMLQuantizationType.F16,
    }
    size = tensor.numel() * tensor.element_size()
    writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), size, raw_dtype=kinds[tensor.dtype])


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()
