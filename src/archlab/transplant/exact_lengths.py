"""Largest lengths of texts in which changes do nothing: windows, temperatures, scalings of RoPE, identical norms.

Each function returns the largest length of texts, in tokens, in which a change does nothing. It is infinite if the
change never does anything, and 0 if it matters from the first token on.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import DynamicNTK, Longrope
from archlab.config.core.base import LONGEST
from archlab.config.layers import LayerConfig
from archlab.model.rope_scaling import Frequencies, frequencies


def no_tokens(own: LayerConfig, wanted: LayerConfig) -> float:
    """Return 0, for a change that matters from the first token on."""
    return 0


def same_keys(own: LayerConfig, wanted: LayerConfig) -> float:
    """Return the number of tokens in which both layers see all keys that their directions allow."""
    return min(_reach(own.attention), _reach(wanted.attention))


def _reach(attention: Component) -> float:
    if not isinstance(attention, AnyAttention):
        return 0
    if attention.blocks is not None:
        return attention.blocks.size
    return attention.window or math.inf


def same_temperatures(own: LayerConfig, wanted: LayerConfig) -> float:
    """Return the number of tokens whose queries have the factor 1 in both layers."""
    return min(_constant_temperature(own.attention), _constant_temperature(wanted.attention))


def _constant_temperature(attention: Component) -> float:
    if not isinstance(attention, MultiHead):
        return 0
    temperature = attention.temperature
    return math.inf if temperature is None else max(0, temperature.length - temperature.offset)


def same_norms(own: LayerConfig, wanted: LayerConfig) -> float:
    """Return infinity if attention and MLP read equal norms in both layers, whether they share one norm or not."""
    are_alike = not own.norm.n_parameters(1) and not wanted.norm.n_parameters(1)
    is_serial = "none" in (own.block.parallel, wanted.block.parallel)
    return math.inf if are_alike and not is_serial else 0


def same_rotations(own: LayerConfig, wanted: LayerConfig) -> float:
    """Return the number of tokens in which both layers rotate queries and keys by the same angles."""
    positions = own.position, wanted.position
    if not all(isinstance(position, Rope) for position in positions):
        return 0
    if not isinstance(own.attention, AnyAttention):  # nothing is rotated
        return math.inf
    return alike_up_to(_rotation(own), _rotation(wanted))


class Rotation(NamedTuple):
    """Rotation of some pairs of dimensions by RoPE."""

    position: Rope
    n: int
    """Number of dimensions that are rotated."""
    pairs: Sequence[int]
    """Indices of the pairs that are compared, in their order."""

    def frequencies(self, n_tokens: int) -> Frequencies:
        """Return the frequencies of the pairs in a text of `n_tokens` tokens, and the amplitude."""
        all_pairs = torch.arange(self.n // 2, dtype=torch.float64)
        found = frequencies(self.position, self.n, torch.tensor([n_tokens]), all_pairs)
        return Frequencies(found.per_token[..., list(self.pairs)], found.amplitude)


def alike_up_to(before: Rotation, after: Rotation, tolerance: float = 1e-12) -> float:
    """Return the number of tokens in which two rotations have the same frequencies and amplitudes, up to a relative
    tolerance, pair by pair."""
    scalings = (before.position.scaling, after.position.scaling)
    ends = [s.original_max_seq_len for s in scalings if isinstance(s, DynamicNTK | Longrope)]
    alike = 0
    changes = sorted({*ends, *(end + 1 for end in ends)})  # only there, something begins to differ
    for n_tokens in (1, *changes, LONGEST):
        if not _rotate_alike(before.frequencies(n_tokens), after.frequencies(n_tokens), tolerance):
            return alike
        alike = n_tokens
    return math.inf


def _rotation(layer: LayerConfig) -> Rotation:
    assert isinstance(layer.position, Rope)
    assert isinstance(layer.attention, AnyAttention)
    n = int(layer.position.rotated(layer.attention.rotary_width))
    return Rotation(layer.position, n, range(n // 2))


def _rotate_alike(before: Frequencies, after: Frequencies, tolerance: float) -> bool:
    return (
        before.per_token.shape == after.per_token.shape
        and torch.allclose(before.per_token, after.per_token, rtol=tolerance, atol=0)
        and math.isclose(float(before.amplitude), float(after.amplitude), rel_tol=tolerance)
    )
