"""Import of models from GGUF files, the format of llama.cpp."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import MOST_LISTED
from archlab.errors import UserError
from archlab.exchange.gguf.architectures import ARCHITECTURES, Architecture
from archlab.exchange.gguf.vocabulary import read_vocabulary
from archlab.exchange.gguf.write import rope_factors
from archlab.extras import needs_extra
from archlab.families.registry import FAMILIES
from archlab.hf.weight_map import placed
from archlab.model.decoder import Decoder
from archlab.model.origin import Origin

READABLE = ("llama", "qwen2", "qwen3")
"""Architectures of GGUF files that archlab imports. Each has the name of its family."""

_KEYS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
"""Required keys, without the prefix of the architecture, and their names in a config.json."""
_OPTIONAL = (
    "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "use_parallel_residual",
)  # fmt: skip
_EMBEDDING, _ROPE_FACTORS = "token_embd.weight", "rope_freqs.weight"
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Published scaling of Llama 3, without its factor. A GGUF file contains only the divisors that follow from it."""


def read_gguf(file: Path) -> tuple[Decoder, list[str]]:
    """Load the model, the tokenizer and the chat templates of a GGUF file. Return the model and notes for the user.

    The parameters are float32. Quantized weights become the numbers that llama.cpp computes from them. Raise UserError
    if archlab cannot compute the model exactly.
    """
    values, stored = _opened(file)
    name = values.get("general.architecture")
    if name not in READABLE:
        raise UserError(f"{file}: general.architecture is {name!r}; archlab imports only {', '.join(READABLE)}")
    config = _config(values, stored, name, str(file))
    with torch.device("meta"):
        model = Decoder(config, seed=None)
    model.load_state_dict(_state(model, ARCHITECTURES[name], stored, str(file)), assign=True)
    files, ids, notes = read_vocabulary(values, str(file))
    model.origin = Origin(name, ids, files)
    return model.eval(), notes


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a file by key, and its tensors, which are not read yet, by name."""
    with needs_extra("gguf", str(file)):
        from gguf import GGUFReader
    try:
        reader = GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
        return values, {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the reader checks little, so a damaged file can cause any error
        raise UserError(f"{file}: not a GGUF file, or damaged: {error or type(error).__name__}") from None


def _config(values: Mapping[str, Any], stored: Mapping[str, Any], name: str, where: str) -> ModelConfig:
    prefix = f"{name}."
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    if unknown := [key for key in own if key not in (*_KEYS, *_OPTIONAL)]:
        raise UserError(f"{where}: {prefix}{unknown[0]} is {own[unknown[0]]!r}; archlab does not know this key")
    missing = [prefix + key for key in _KEYS if key not in own]
    missing += [_EMBEDDING] if _EMBEDDING not in stored else []
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing")
    hf: Raw = {theirs: _shortest(own[key]) for key, theirs in _KEYS.items()} | {
        "vocab_size": int(stored[_EMBEDDING].shape[-1]),
        "num_key_value_heads": own.get("attention.head_count_kv", own["attention.head_count"]),
        "head_dim": own.get("attention.key_length"),
        "tie_word_embeddings": "output.weight" not in stored,
        "rope_parameters": _rope(own, stored, where),
    }
    if name != "qwen2":
        hf["attention_bias"] = "blk.0.attn_q.bias" in stored
    if name == "llama":
        hf["mlp_bias"] = "blk.0.ffn_up.bias" in stored
    config, _ = FAMILIES[name].read(hf, where)
    head_dim = layer_configs(config)[0].multi_head.head_dim
    only = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "use_parallel_residual": False}
    for key, allowed in only.items():
        if own.get(key, allowed) != allowed:
            raise UserError(f"{where}: {prefix}{key} is {own[key]}; archlab imports only {allowed}")
    _check_factors(config, stored, where)
    return config


def _shortest(value: Any) -> Any:
    """Return the shortest decimal number that rounds to the same float32, which is the published one."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope(own: Raw, stored: Mapping[str, Any], where: str) -> Raw:
    kind, factor = own.get("rope.scaling.type", "none"), _shortest(own.get("rope.scaling.factor", 1.0))
    rope: Raw = {"rope_type": "default", "rope_theta": _shortest(own.get("rope.freq_base", 10000.0))}
    if kind not in ("none", "linear", "yarn"):
        raise UserError(f"{where}: rope.scaling.type is {kind!r}; archlab imports none, linear and yarn")
    if _ROPE_FACTORS in stored:
        rope |= {"rope_type": "llama3", "factor": float(_dequantized(stored[_ROPE_FACTORS]).max()), **_LLAMA_3}
    if kind != "none":
        rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = own.get("rope.scaling.original_context_length")
        if "rope.scaling.attn_factor" in own:  # llama.cpp multiplies its usual factor by this one
            rope["attention_factor"] = own["rope.scaling.attn_factor"] * (1 + 0.1 * log(factor))
    return rope


def _check_factors(config: ModelConfig, stored: Mapping[str, Any], where: str) -> None:
    if _ROPE_FACTORS not in stored:
        return
    factors, expected = _dequantized(stored[_ROPE_FACTORS]), rope_factors(config)
    if expected is None or expected.shape != factors.shape or not torch.allclose(expected, factors, rtol=1e-5):
        raise UserError(f"{where}: {_ROPE_FACTORS} is not the scaling of Llama 3, the only one that archlab imports")


def _state(model: Decoder, architecture: Architecture, stored: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Return the model's parameters from the tensors of a file."""
    wanted = model.state_dict()
    rows = [row for row in placed(architecture.rows, model.config) if any(name in wanted for name in row.ours)]
    problems = [*_unfit(rows, wanted, stored)]
    if problems:
        more = [f"and {len(problems) - MOST_LISTED:,} more"] if len(problems) > MOST_LISTED else []
        raise UserError("\n  ".join([f"{where}: tensors do not fit the model", *problems[:MOST_LISTED], *more]))
    state = dict[str, Tensor]()
    for row in rows:
        values = row.conversion.split(_dequantized(stored[row.theirs]), row.layer)
        state |= {name: value.contiguous() for name, value in zip(row.ours, values, strict=True)}
    return state


def _unfit(rows: Sequence[Any], wanted: Mapping[str, Tensor], stored: Mapping[str, Any]) -> Iterator[str]:
    for row in rows:
        if row.theirs not in stored:
            yield f"{row.theirs}  missing"
            continue
        shape = tuple(int(n) for n in reversed(stored[row.theirs].shape))
        ours = [torch.empty(wanted[name].shape, device="meta") for name in row.ours]
        expected = tuple(row.conversion.join(ours, row.layer).shape)
        if shape != expected:
            yield f"{row.theirs}  has shape {list(shape)}, expected {list(expected)}"
    for name in stored.keys() - {row.theirs for row in rows} - {_ROPE_FACTORS}:
        yield f"{name}  surplus"


def _dequantized(tensor: Any) -> Tensor:
    from gguf import dequantize

    try:
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    except NotImplementedError:
        raise UserError(f"{tensor.name}: archlab cannot read the format {tensor.tensor_type.name}") from None
