"""Changes that do nothing, or nothing in short texts: windows, temperatures, scalings of RoPE, identical norms."""

import math
import re

import torch
from torch import Tensor

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import DynamicNTK, Longrope, Rope
from archlab.config.core.base import LONGEST
from archlab.config.layers import LayerConfig
from archlab.model.rope_scaling import frequencies


def limit(field: str, own: LayerConfig, wanted: LayerConfig) -> float:
    """Return the largest length of texts, in tokens, in which the change of a field does nothing.

    It is infinite if the change never does anything, and 0 if it matters from the first token on.
    """
    place, _, name = field.partition(".")
    if place == "attention" and re.match(r"(window|stride|global_tokens|blocks)\b", name):
        return min(_reach(own.attention), _reach(wanted.attention))
    if place == "attention" and name.startswith("temperature."):
        return min(_constant_temperature(own.attention), _constant_temperature(wanted.attention))
    if field == "block.parallel" and not own.norm.n_parameters(1) and not wanted.norm.n_parameters(1):
        is_serial = "none" in (own.block.parallel, wanted.block.parallel)
        return 0 if is_serial else math.inf  # norms without parameters are alike
    if place == "position" and re.match(r"(theta|scaling)\b", name):
        return _same_rotations(own, wanted)
    return 0


def _reach(attention: Component) -> float:
    """Return the number of tokens in which every query sees all keys that its direction allows."""
    if not isinstance(attention, AnyAttention):
        return 0
    if attention.blocks is not None:
        return attention.blocks.size
    return attention.window or math.inf


def _constant_temperature(attention: Component) -> float:
    """Return the number of tokens whose queries have the factor 1."""
    if not isinstance(attention, MultiHead):
        return 0
    temperature = attention.temperature
    return math.inf if temperature is None else max(0, temperature.length - temperature.offset)


def _same_rotations(own: LayerConfig, wanted: LayerConfig) -> float:
    positions = own.position, wanted.position
    if not all(isinstance(position, Rope) for position in positions):
        return 0
    if not isinstance(own.attention, AnyAttention):  # nothing is rotated
        return math.inf
    scalings = [position.scaling for position in positions if isinstance(position, Rope)]
    ends = [s.original_max_seq_len for s in scalings if isinstance(s, DynamicNTK | Longrope)]
    alike = 0
    changes = sorted({*ends, *(end + 1 for end in ends)})  # only there, something begins to differ
    for n_tokens in (1, *changes, LONGEST):
        if not _rotate_alike(own, wanted, n_tokens):
            return alike
        alike = n_tokens
    return math.inf


def _rotate_alike(own: LayerConfig, wanted: LayerConfig, n_tokens: int) -> bool:
    """Return whether both layers rotate by the same angles in a text of `n_tokens` tokens."""
    (before, factor_before), (after, factor_after) = (_rotations(layer, n_tokens) for layer in (own, wanted))
    return (
        before.shape == after.shape
        and torch.allclose(before, after, rtol=1e-12, atol=0)
        and math.isclose(factor_before, factor_after, rel_tol=1e-12)
    )


def _rotations(layer: LayerConfig, n_tokens: int) -> tuple[Tensor, float]:
    assert isinstance(layer.position, Rope)
    assert isinstance(layer.attention, AnyAttention)
    n = int(layer.position.rotated(layer.attention.rotary_width))
    pairs = torch.arange(n // 2, dtype=torch.float64)
    return frequencies(layer.position, n, torch.tensor([n_tokens]), pairs)
