"""Configs of the models in GGUF files.

The keys of a file become those of a config.json, which the family reads. Then the config is written as keys again. A
key that would not be written, or would have another value, is an error: the file differs from the model.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from typing import Any

import numpy as np
import torch

from archlab.config.components.rope_scaling import yarn_amplitude
from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError, at
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header
from archlab.exchange.gguf.settings import rope_factors, settings
from archlab.exchange.gguf.tensors import (
    DENSE_WIDTH,
    EMBEDDING,
    EXPERT_WIDTH,
    OUTPUT,
    ROPE_FACTORS,
    SHARED_WIDTH,
    dequantized,
)
from archlab.families.registry import FAMILIES
from archlab.hf.fields import all_hf_keys
from archlab.hf.rope import RopeKeys

_REQUIRED = {
    "context_length": "max_seq_len", "embedding_length": "d_model", "block_count": "n_layers",
    DENSE_WIDTH: "mlp.d_ff", "attention.head_count": "attention.n_heads",
}  # fmt: skip
_EPSILON = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_OPTIONAL = {
    **dict.fromkeys(_EPSILON, "norm.eps"),
    "attention.sliding_window": "attention.window", "attn_logit_softcapping": "attention.softcap",
    "final_logit_softcapping": "head.softcap", "use_parallel_residual": "block.parallel",
    "embedding_scale": "embedding.scale", "attention.scale": "attention.scale", "logit_scale": "head.scale",
    "residual_scale": "block.mlp_multiplier", "expert_count": "mlp.experts", "expert_used_count": "mlp.active",
    EXPERT_WIDTH: "mlp.d_ff", SHARED_WIDTH: "mlp.shared.d_ff",
    "expert_weights_scale": "mlp.router.factor", "expert_weights_norm": "mlp.router.normalise",
    "ssm.conv_kernel": "mixer.taps", "ssm.inner_size": "mixer.inner_width", "ssm.state_size": "mixer.d_state",
    "ssm.time_step_rank": "mixer.dt_rank", "ssm.group_count": "mixer.n_groups",
    "shortconv.l_cache": "mixer.taps",
}  # fmt: skip
"""Archlab fields, by key without the prefix of the architecture. If a file lacks a key, the family's default
applies."""

_BIASES = {
    "attention.qkv_bias": ("attn_q", "attn_qkv"),
    "attention.out_bias": ("attn_output",),
    "mlp.bias": ("ffn_up",),
}
"""Tensors whose bias shows that the model has biases, by archlab field."""

_IDLE = {
    "tensor_data_layout": None, "rope.scaling.finetuned": True, "rope.scaling.type": "none",
    "attention.sliding_window": 0, "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.factor": 1.0, "expert_group_count": 1, "expert_group_used_count": 1,
    "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0, "expert_count": 0, "expert_used_count": 0,
}  # fmt: skip
"""Values without an effect, by key. None means any value."""

_MAY_LACK = {
    "vocab_size", "use_parallel_residual", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.sliding_window_pattern", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
    "rope.scaling.type", "rope.scaling.original_context_length", EXPERT_WIDTH, "ssm.dt_b_c_rms",
    "rope.scaling.finetuned", "attention.q_lora_rank",
}  # fmt: skip
"""Keys that archlab writes and that a file may lack, because archlab and llama.cpp assume the same default."""

_COUNTS = {
    "block_count": 1, "embedding_length": 1, "attention.head_count": 0, "nextn_predict_layers": 0,
    "ssm.time_step_rank": 1, "ssm.inner_size": 1,
}  # fmt: skip
"""Smallest allowed value, by key, of keys that must be whole numbers."""

_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Published scaling of Llama 3, without its factor. A GGUF file contains only the divisors that follow from it."""


def read_header(
    values: Mapping[str, Any], tensors: Mapping[str, Any], architecture: GGUFArchitecture, where: str
) -> Header:
    """Return the description of the model in a file. Raise UserError if a required key is missing.

    Layers for multi-token prediction are the last in a file. They are not counted, as in a Hugging Face folder.
    """
    prefix = f"{architecture.name}."
    keys = {key.removeprefix(prefix): _plain(value) for key, value in values.items() if key.startswith(prefix)}
    for key, least in _COUNTS.items():
        if key in keys and not (type(keys[key]) is int and keys[key] >= least):
            shown = to_yaml_line(keys[key])
            raise UserError(f"{where}: {prefix}{key} is {shown}; allowed: a whole number, at least {least}")
    if FAMILIES[architecture.family].has_mtp_layers and "block_count" in keys:
        n_mtp = keys.pop("nextn_predict_layers", 0)
        keys["block_count"] -= n_mtp
        of_mtp = tuple(f"blk.{keys['block_count'] + i}." for i in range(n_mtp))
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(of_mtp)}
    missing = [prefix + key for key in _REQUIRED if key not in keys]
    if not any(keys.get(key) for key in _EPSILON):
        missing.append(prefix + _EPSILON[0])
    missing += [EMBEDDING] if EMBEDDING not in tensors else []
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing")
    header = Header(keys, tensors, {})
    return replace(header, rope=_rope(header, where)) if keys["attention.head_count"] else header


def _plain(value: Any) -> Any:
    """Return a value as a config.json has it.

    A float32 becomes the shortest decimal number that rounds to it, which is the published one. A list of equal numbers
    becomes one number.
    """
    if isinstance(value, list) and value and not isinstance(value[0], bool) and len(set(value)) == 1:
        return _plain(value[0])
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope(header: Header, where: str) -> Raw:
    keys, stored = header.keys, header.tensors
    factor = keys.get("rope.scaling.factor", 1.0)
    kind = keys.get("rope.scaling.type", "linear" if factor != 1.0 else "none")
    rope: Raw = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    if kind not in ("none", "linear", "yarn"):
        raise UserError(f"{where}: rope.scaling.type is {to_yaml_line(kind)}; archlab imports none, linear and yarn")
    if ROPE_FACTORS in stored:
        rope |= {"rope_type": "llama3", "factor": float(dequantized(stored[ROPE_FACTORS]).max()), **_LLAMA_3}
    if kind != "none":
        rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = keys.get("rope.scaling.original_context_length")
        if "rope.scaling.attn_factor" in keys:  # llama.cpp multiplies its usual factor by this one
            rope["attention_factor"] = keys["rope.scaling.attn_factor"] * yarn_amplitude(factor)
    return {**rope, "partial_rotary_factor": keys.get("rope.dimension_count", header.head_dim) / header.head_dim}


def read_model_config(header: Header, architecture: GGUFArchitecture, where: str) -> ModelConfig:
    """Return the config of the model in a file.

    Raise UserError if archlab cannot compute the model, or if it does not know the effect of a key.
    """
    with at(where):
        hf = _hf_keys(header, architecture)
    config, _ = FAMILIES[architecture.family].read(hf, where)
    _check_keys(header, config, architecture, where)
    with at(where):
        architecture.check(config)
    _check_factors(config, header, where)
    return config


def _hf_keys(header: Header, architecture: GGUFArchitecture) -> Raw:
    """Return the config.json that describes the model in a file."""
    keys, stored = header.keys, header.tensors
    ours = {
        field: keys[key] for key, field in (_REQUIRED | _OPTIONAL).items() if key in keys and not _is_idle(key, keys)
    }
    ours |= {
        "vocab_size": int(stored[EMBEDDING].shape[-1]),
        "attention.n_kv_heads": _largest(keys.get("attention.head_count_kv", keys["attention.head_count"])),
        "attention.head_dim": header.head_dim if keys["attention.head_count"] else None,
        "attention.qk_norm.eps": ours["norm.eps"],
        "head.tied": is_tied(stored),
    }
    biased = {name.split(".")[-2] for name in stored if name.endswith(".bias")}
    ours |= {field: not biased.isdisjoint(names) for field, names in _BIASES.items()}
    fields = FAMILIES[architecture.family].fields
    names = all_hf_keys(fields)
    hf = {names[field]: value for field, value in ours.items() if field in names}
    if "position.theta" in names:
        is_partial = any(isinstance(each, RopeKeys) and (each.partial or each.fraction != 1) for each in fields)
        hf["rope_parameters"] = {k: v for k, v in header.rope.items() if is_partial or k != "partial_rotary_factor"}
    return hf | architecture.read_more(header)


def _largest(value: Any) -> Any:
    """Return the largest number of a list with one number per layer, in which 0 means a layer without attention."""
    return max(value) if isinstance(value, list) else value


def is_tied(stored: Mapping[str, Any]) -> bool:
    """Return whether a file has no tensor for the head, or one that equals the embedding."""
    if OUTPUT not in stored:
        return True
    head, embedding = stored[OUTPUT], stored[EMBEDDING]
    return head.tensor_type == embedding.tensor_type and np.array_equal(head.data, embedding.data)


def _check_keys(header: Header, config: ModelConfig, architecture: GGUFArchitecture, where: str) -> None:
    expected, idle = settings(config, architecture), architecture.idle(header.keys)
    for key, value in header.keys.items():
        if key in idle or _is_idle(key, header.keys):
            continue
        what = f"{where}: {architecture.name}.{key} is {to_yaml_line(value)}"
        if key not in expected:
            raise UserError(f"{what}; archlab does not know this key")
        if not _same(value, _plain(expected[key])):
            raise UserError(f"{what}; archlab imports only {to_yaml_line(_plain(expected[key]))}")
    if lacking := expected.keys() - header.keys.keys() - _MAY_LACK - idle:
        raise UserError(f"{where}: {', '.join(f'{architecture.name}.{key}' for key in sorted(lacking))} missing")


def _is_idle(key: str, keys: Raw) -> bool:
    """Return whether a key of a file has no effect in llama.cpp."""
    kind, factor = keys.get("rope.scaling.type"), keys.get("rope.scaling.factor", 1.0)
    if key == "rope.scaling.original_context_length":
        return kind != "yarn"
    if key == "rope.scaling.yarn_attn_factor":  # llama.cpp always computes the usual factor
        return kind == "yarn" and isclose(keys[key], yarn_amplitude(factor), rel_tol=1e-5)
    return key in _IDLE and _IDLE[key] in (None, keys[key])


def _same(a: Any, b: Any) -> bool:
    return isclose(a, b, rel_tol=1e-5) if isinstance(a, float) and isinstance(b, float) else a == b


def _check_factors(config: ModelConfig, header: Header, where: str) -> None:
    if ROPE_FACTORS not in header.tensors:
        return
    factors, expected = dequantized(header.tensors[ROPE_FACTORS]), rope_factors(config)
    if expected is None or expected.shape != factors.shape or not torch.allclose(expected, factors, rtol=1e-5):
        raise UserError(f"{where}: {ROPE_FACTORS} is not the scaling of Llama 3, the only one that archlab imports")
