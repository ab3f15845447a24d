"""Scalings of RoPE, which change its rotation angles for sequences longer than those of the original training run."""

import math
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.core.base import Length, Positive, Settings

Stretch = Annotated[float, Field(ge=1)]
"""Factor by which a RoPE scaling extends the maximum sequence length."""


class Scaling(Settings):
    """Base class of the scalings of RoPE."""

    @property
    def is_idle(self) -> bool:
        """Whether the scaling changes nothing, in texts of any length."""
        return False


class NoScaling(Scaling):
    """No scaling: RoPE's rotation angles stay unchanged."""

    kind: Literal["none"] = "none"

    @property
    def is_idle(self) -> bool:
        return True


class LinearScaling(Scaling):
    """Position interpolation: all frequencies are divided by one factor (Chen 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Stretch
    """Ratio of the new maximum length to the maximum length in the original training run."""

    @property
    def is_idle(self) -> bool:
        return self.factor == 1


class DynamicNTK(Scaling):
    """Dynamic NTK: once the sequence is longer than the original maximum length, theta grows with it.

    By design, decoding with a cache then gives different results than one full pass, because earlier keys were rotated
    with a different theta.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Stretch
    """Factor that sets how fast theta grows with the sequence length."""
    original_max_seq_len: Length
    """Sequence length in tokens up to which theta does not change."""


class Llama3Scaling(Scaling):
    """Scaling that stretches long wavelengths and keeps short ones, with a smooth transition between them (Llama
    3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: Stretch
    """Factor by which long wavelengths are multiplied."""
    low_freq_factor: Positive = 1.0
    """Divisor that sets the upper limit: wavelengths above original_max_seq_len / low_freq_factor are multiplied by the
    whole factor."""
    high_freq_factor: Positive = 4.0
    """Divisor that sets the lower limit: wavelengths below original_max_seq_len / high_freq_factor stay unchanged."""
    original_max_seq_len: Length = 8192
    """Maximum sequence length in tokens in the original training run."""

    @property
    def is_idle(self) -> bool:
        return self.factor == 1


class Yarn(Scaling):
    """YaRN (Peng 2023): the frequencies of slow pairs of dimensions are divided by a factor, and those of fast pairs
    stay unchanged. The speed of a pair is its number of rotations within the original maximum length."""

    kind: Literal["yarn"] = "yarn"
    factor: Stretch
    """Ratio of the new maximum length to the maximum length in the original training run."""
    original_max_seq_len: Length
    """Maximum sequence length in tokens in the original training run."""
    beta_fast: Positive = 32.0
    """Number of rotations within the original maximum length above which the frequency of a pair of dimensions stays
    unchanged."""
    beta_slow: Positive = 1.0
    """Number of rotations within the original maximum length below which the frequency of a pair of dimensions is
    divided by the whole factor."""
    truncate: bool = True
    """Whether the range of pairs between beta_fast and beta_slow, whose frequencies are partly reduced, is rounded
    outward to whole pairs."""
    attention_factor: Positive | None = None
    """Factor on the cosines and sines. null: 0.1 ln(factor) + 1."""

    @property
    def is_idle(self) -> bool:
        return self.factor == 1 and self.amplitude == 1

    @property
    def amplitude(self) -> float:
        return self.attention_factor or yarn_amplitude(self.factor)


def yarn_amplitude(factor: float, mscale: float = 1.0) -> float:
    """Return the factor by which YaRN multiplies cosines and sines. DeepSeek's key `mscale` strengthens it."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


class Longrope(Scaling):
    """LongRoPE (Ding 2024): the frequency of each pair of dimensions is divided by its own number. There is one list of
    these divisors for short sequences, and one for long sequences.

    If a sequence grew beyond the original length, its cache would contain keys rotated with both lists. `generate`
    therefore processes the whole sequence again when it crosses that length.
    """

    kind: Literal["longrope"] = "longrope"
    original_max_seq_len: Annotated[Length, Field(ge=2)]
    """Sequence length in tokens up to which short_factor applies. Longer sequences use long_factor for all of their
    tokens."""
    short_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divisors of the frequencies, one per pair of dimensions, for sequences of up to original_max_seq_len tokens."""
    long_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divisors of the frequencies, one per pair of dimensions, for longer sequences."""
    factor: Stretch
    """Ratio of the new maximum length to the original one. It determines attention_factor, and must be 1 if
    attention_factor is set."""
    attention_factor: Positive | None = None
    """Factor on the cosines and sines. null: sqrt(1 + ln(factor) / ln(original_max_seq_len))."""
    long_attention_factor: Positive | None = None
    """Factor on the cosines and sines of sequences of more than original_max_seq_len tokens. null: the same factor as
    for short sequences."""

    @property
    def amplitude(self) -> float:
        """Factor on the cosines and sines of short sequences."""
        usual = math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_seq_len))
        return self.attention_factor or usual


class Proportional(Scaling):
    """p-RoPE: only the pairs of dimensions with the highest frequencies are rotated (Barbero 2024)."""

    kind: Literal["proportional"] = "proportional"
    turning: Annotated[float, Field(gt=0, le=1)]
    """Fraction of the pairs of dimensions that are rotated."""

    @property
    def is_idle(self) -> bool:
        return self.turning == 1

    def rotated_pairs(self, n: int) -> int:
        return int(self.turning * n // 2)


RopeScaling = Annotated[
    NoScaling | LinearScaling | DynamicNTK | Llama3Scaling | Yarn | Longrope | Proportional,
    Field(discriminator="kind"),
]
