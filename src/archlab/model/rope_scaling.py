"""Frequencies of RoPE, and their scaling for sequences longer than those in training.

`n` is the number of rotated dimensions. Pair i rotates by frequency[i] radians per token.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from archlab.config.components import rope_scaling as schema
from archlab.config.components.position import Rope


class Frequencies(NamedTuple):
    """Frequency of each pair in radians per token, [n / 2] or [B, T, n / 2], and the factor that scales cos and sin: a
    number or [B, 1, T, 1]."""

    per_token: Tensor
    amplitude: float | Tensor = 1.0


def frequencies(config: Rope, n: int, lengths_BT1: Tensor, pairs: Tensor) -> Frequencies:
    """Return the frequencies for sequences of the given lengths.

    `pairs` holds the indices of the pairs, 0 to n/2 - 1, in the dtype of the result.
    """
    # Divide, as published code does. A negative power would differ in the last bit, which matters in long texts.
    plain = 1 / config.theta ** (2 * pairs / n)
    scaling = config.scaling
    if scaling.is_idle or isinstance(scaling, schema.NoScaling):  # formulas of idle scalings round the last bit
        return Frequencies(plain)
    match scaling:
        case schema.LinearScaling(factor=factor):
            return Frequencies(plain / factor)
        case schema.DynamicNTK() as s:
            longer = (lengths_BT1.to(pairs.dtype) / s.original_max_seq_len).clamp(min=1)
            stretch = s.factor * longer - (s.factor - 1)
            theta = config.theta * stretch ** (n / (n - 2))
            return Frequencies(1 / theta ** (2 * pairs / n))
        case schema.Llama3Scaling() as s:
            return Frequencies(_llama3(s, plain))
        case schema.Yarn() as s:
            return Frequencies(_yarn(s, config.theta, n, pairs), s.amplitude)
        case schema.Longrope() as s:
            long, short = plain.new_tensor(s.long_factor), plain.new_tensor(s.short_factor)
            is_long = lengths_BT1 > s.original_max_seq_len
            if s.long_attention_factor is not None:
                own = plain.new_tensor(s.amplitude)
                longer = plain.new_tensor(s.long_attention_factor)
                return Frequencies(
                    plain / torch.where(is_long, long, short), torch.where(is_long, longer, own)[:, None]
                )
            return Frequencies(plain / torch.where(is_long, long, short), s.amplitude)
        case schema.Proportional() as s:
            return Frequencies(torch.where(pairs < s.rotated_pairs(n), plain, 0.0))


def _llama3(s: schema.Llama3Scaling, plain: Tensor) -> Tensor:
    """Scale the frequency of each pair, depending on how often the pair rotates in the original length (Llama 3.1).

    The frequencies of pairs that rotate rarely are divided by `factor`. Those of pairs that rotate often are kept. In
    between, the two results are blended.
    """
    rotations = s.original_max_seq_len * plain / (2 * math.pi)
    kept = ((rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / s.factor


def _yarn(s: schema.Yarn, theta: float, n: int, pairs: Tensor) -> Tensor:
    """Keep the frequencies of fast pairs, divide those of slow pairs by `factor`, and blend in between (Peng 2023)."""

    def pair_that_rotates(times: float) -> float:
        return n * math.log(s.original_max_seq_len / (times * 2 * math.pi)) / (2 * math.log(theta))

    last_kept, first_slowed = pair_that_rotates(s.beta_fast), pair_that_rotates(s.beta_slow)
    if s.truncate:
        last_kept, first_slowed = math.floor(last_kept), math.ceil(first_slowed)
    last_kept, first_slowed = max(last_kept, 0), min(first_slowed, n - 1)
    kept = 1 - ((pairs - last_kept) / ((first_slowed - last_kept) or 1e-3)).clamp(0, 1)
    waves = theta ** (2 * pairs / n)
    # The same operations as in published code, because the last bit matters in long texts.
    return 1 / (s.factor * waves) * (1 - kept) + 1 / waves * kept
