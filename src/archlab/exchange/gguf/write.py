"""Export of a model as a GGUF file for llama.cpp."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.config.components.position import Alibi, LinearScaling, Llama3Scaling, NoScaling, Rope, Yarn
from archlab.config.layers import LayerConfig, final_norm, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architectures import ARCHITECTURES, Architecture, find_architecture
from archlab.exchange.gguf.vocabulary import add_vocabulary
from archlab.exchange.save import choose_family
from archlab.extras import needs_extra
from archlab.files import file_atomic, make_folder
from archlab.hf.rope import without_idle_scalings
from archlab.hf.weight_map import published_tensors
from archlab.model.decoder import Decoder
from archlab.model.rope_scaling import Frequencies, frequencies

if TYPE_CHECKING:
    from gguf import GGUFWriter

Format = Literal["float32", "bfloat16", "float16"]

_WIDE = ("_norm.weight", "position_embd.weight")
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
        notes += _write(model, config, architecture, temporary, _format(model, dtype))
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


def _format(model: Decoder, dtype: Format | None) -> torch.dtype:
    own = next(model.parameters()).dtype
    return getattr(torch, dtype) if dtype else torch.float32 if own is torch.float64 else own


def _write(
    model: Decoder, config: ModelConfig, architecture: Architecture, file: Path, dtype: torch.dtype
) -> list[str]:
    with needs_extra("gguf", "writing a GGUF file"):
        from gguf import GGUFWriter, LlamaFileType
    writer = GGUFWriter(file, architecture.name)
    kinds = {torch.bfloat16: LlamaFileType.MOSTLY_BF16, torch.float16: LlamaFileType.MOSTLY_F16}
    writer.add_file_type(kinds.get(dtype, LlamaFileType.ALL_F32))
    _add_numbers(writer, config)
    if architecture.reads_scales:
        _add_scales(writer, config)
    notes = add_vocabulary(writer, model.origin, config.vocab_size)
    for name, tensor in _tensors(model, config, architecture, "meta"):
        _announce(writer, name, tensor.to(_format_of(name, tensor, dtype)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in _tensors(model, config, architecture, "cpu"):
        writer.write_tensor_data(_bytes(_narrowed(name, tensor, _format_of(name, tensor, dtype))))
    writer.close()
    return notes


def _tensors(
    model: Decoder, config: ModelConfig, architecture: Architecture, device: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) pairs, one at a time to save memory. With the device `meta`, the tensors have no content."""
    ours = {name: tensor.detach().to(device) for name, tensor in model.state_dict().items()}
    yield from published_tensors(architecture.rows, config, ours, f"llama.cpp's {architecture.name}")
    if architecture.needs_output and config.head.tied:
        yield "output.weight", ours["embedding.weight"]
    if (factors := rope_factors(config)) is not None:
        yield "rope_freqs.weight", factors.to(device)


def _format_of(name: str, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
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


def _add_numbers(writer: "GGUFWriter", config: ModelConfig) -> None:
    model, layers = resolve(config), layer_configs(config)
    heads = layers[0].multi_head
    writer.add_vocab_size(model.vocab_size)
    writer.add_context_length(model.max_seq_len)
    writer.add_embedding_length(model.d_model)
    writer.add_block_count(model.n_layers)
    writer.add_feed_forward_length(layers[0].dense.d_ff)
    writer.add_parallel_residual(layers[0].block.parallel != "none")
    writer.add_head_count(heads.n_heads)
    writer.add_head_count_kv(heads.n_kv_heads)
    writer.add_key_length(heads.head_dim)
    writer.add_value_length(heads.v_dim)
    norm = final_norm(config)
    if isinstance(norm, LayerNorm):
        writer.add_layer_norm_eps(norm.eps)
    elif isinstance(norm, RMSNorm):
        writer.add_layer_norm_rms_eps(norm.eps)
    if heads.clip_qkv is not None:
        writer.add_clamp_kqv(heads.clip_qkv)
    if heads.softcap is not None:
        writer.add_attn_logit_softcapping(heads.softcap)
    if model.head.softcap is not None:
        writer.add_final_logit_softcapping(model.head.softcap)
    local = [layer for layer in layers if layer.multi_head.window is not None]
    if local and local[0].multi_head.window is not None:
        writer.add_sliding_window(local[0].multi_head.window)
        writer.add_sliding_window_pattern([layer in local for layer in layers])
    _add_position(writer, local, [layer for layer in layers if layer not in local])


def _add_scales(writer: "GGUFWriter", config: ModelConfig) -> None:
    model = resolve(config)
    layer = layer_configs(config)[0]
    assert isinstance(model.embedding.scale, float), "resolved"
    writer.add_embedding_scale(model.embedding.scale)
    writer.add_attention_scale(layer.multi_head.scale)
    writer.add_residual_scale(layer.block.mlp_multiplier)
    writer.add_logit_scale(1 / model.readout.scale)


def _add_position(writer: "GGUFWriter", local: list[LayerConfig], full: list[LayerConfig]) -> None:
    layer = (full or local)[0]
    rope = layer.position
    if isinstance(rope, Alibi):
        writer.add_max_alibi_bias(rope.max_bias)
    if not isinstance(rope, Rope):
        return
    writer.add_rope_dimension_count(int(layer.multi_head.head_dim * rope.fraction))
    writer.add_rope_freq_base(rope.theta)
    if local and isinstance(local[0].position, Rope):
        writer.add_rope_freq_base_swa(local[0].position.theta)
    if isinstance(rope.scaling, LinearScaling | Yarn):
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType(rope.scaling.kind))
        writer.add_rope_scaling_factor(rope.scaling.factor)
    if isinstance(rope.scaling, Yarn):
        writer.add_rope_scaling_orig_ctx_len(rope.scaling.original_max_seq_len)
        if rope.scaling.attention_factor is not None:  # llama.cpp multiplies its usual factor by this one
            usual = rope.scaling.model_copy(update={"attention_factor": None})
            amplitude = _frequencies(rope.model_copy(update={"scaling": usual}), 4).amplitude
            writer.add_rope_scaling_attn_factors(rope.scaling.attention_factor / amplitude)


def rope_factors(config: ModelConfig) -> Tensor | None:
    """Return the frequency divisors of Llama 3's RoPE scaling, or None for any other scaling.

    The tensor is float32 [head_dim / 2] and has one divisor for each pair of dimensions.
    """
    layer = layer_configs(config)[0]
    rope = layer.position
    if not isinstance(rope, Rope) or not isinstance(rope.scaling, Llama3Scaling):
        return None
    n, plain = layer.multi_head.head_dim, rope.model_copy(update={"scaling": NoScaling()})
    return (_frequencies(plain, n).per_token / _frequencies(rope, n).per_token).float()


def _frequencies(rope: Rope, n: int) -> Frequencies:
    return frequencies(rope, n, torch.zeros(1, 1, 1), torch.arange(n // 2, dtype=torch.float64))
