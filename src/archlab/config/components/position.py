"""Positions: how the model knows where a token stands."""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Index, Length, Positive, Settings, Width
from archlab.config.core.registry import Registered, Section, kind_of
from archlab.errors import UserError

Theta = Annotated[float, Field(gt=1)]
Stretch = Annotated[float, Field(ge=1)]
Longer = Annotated[float, Field(gt=1)]
"""A stretch that is one."""

INDEX_BYTES = 8
"""Bytes of one index into a table."""

ActsOn = Literal["embedding", "scores", "queries", "nothing"]
ON_ATTENTION: tuple[ActsOn, ...] = ("scores", "queries")
"""Positions that do nothing without attention act on these."""


class Position(Registered):
    """How the model knows where a token stands."""

    section: ClassVar[Section] = "position"
    default_kind: ClassVar[str | None] = "rope"

    acts_on: ClassVar[ActsOn]
    """embedding: added once, to the token embedding. scores: read the distance of query and key, and add to their
    score. queries: rotates them and the keys."""
    reads_queries: ClassVar[bool] = False
    """Whether what it adds to scores depends on the queries. Otherwise all texts of a batch share it."""

    @classmethod
    def check_class(cls) -> None:
        """Refuse a kind that acts on something unknown: it would be ignored."""
        if cls.acts_on not in get_args(ActsOn):
            allowed = ", ".join(get_args(ActsOn))
            raise UserError(f"position {kind_of(cls)}: acts_on {cls.acts_on!r}; allowed: {allowed}")

    @property
    def is_shared(self) -> bool:
        """Whether all layers add one table to their scores."""
        return False

    def rotated(self, width: int) -> float:
        """Return how many of `width` dimensions rotate."""
        return width

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        """Learned numbers of a table that stands once in the model: on the embedding, or beside all layers' scores."""
        return 0

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        """Learned numbers of a table that stands beside one layer's scores."""
        return 0

    @property
    def learns_scores(self) -> bool:
        """Whether it adds learned numbers to scores."""
        return self.acts_on == "scores" and self.of_all_layers(1, 1, 1) + self.of_a_layer(1, 1) > 0

    def saved_for_scores(self, this: Pass, n_heads: int, query_width: int) -> float:
        """Bytes that training keeps to find the gradient of what it learns: of a layer, or once if all share it."""
        return 0.0


class NoPosition(Position):
    """No position information but the causal mask (NoPE)."""

    kind: Literal["none"] = "none"
    display_name: ClassVar[str] = "NoPE"
    acts_on: ClassVar[ActsOn] = "nothing"


class Sinusoidal(Position):
    """Fixed sines and cosines added to the embedding (Vaswani 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    display_name: ClassVar[str] = "sinusoid"
    acts_on: ClassVar[ActsOn] = "embedding"
    theta: Theta = 10000.0
    """Base of the geometric series of wavelengths."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """Sine and cosine of a frequency side by side (2017), or all sines, then all cosines."""
    offset: Index = 0
    """Where the first position stands on the waves (XGLM: 2)."""


class Learned(Position):
    """A learned vector per position, added to the embedding; max_seq_len of them."""

    kind: Literal["learned"] = "learned"
    display_name: ClassVar[str] = "learned"
    acts_on: ClassVar[ActsOn] = "embedding"
    offset: Index = 0
    """Unused rows before the first position's (OPT: 2)."""

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        """A vector per position."""
        return (self.offset + max_seq_len) * d_model


class Shaw(Position):
    """Learned vectors a of the distance beside the keys: q.(k + a) (Shaw 2018); per layer, shared by its heads."""

    kind: Literal["shaw"] = "shaw"
    display_name: ClassVar[str] = "Shaw"
    acts_on: ClassVar[ActsOn] = "scores"
    reads_queries: ClassVar[bool] = True
    max_distance: Width = 16
    """Larger distances share the last vector."""

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        """A vector per distance."""
        return (self.max_distance + 1) * query_width

    def saved_for_scores(self, this: Pass, n_heads: int, query_width: int) -> float:
        """The distance of every pair; queries in one matrix, and their products with the vector of every distance."""
        queries = this.rows * n_heads * (query_width + self.max_distance + 1)
        return INDEX_BYTES * this.mask_pairs + FLOAT32_BYTES * queries


class T5(Position):
    """A learned bias per head and bucket of distances (Raffel 2020), one-sided."""

    kind: Literal["t5"] = "t5"
    display_name: ClassVar[str] = "T5"
    acts_on: ClassVar[ActsOn] = "scores"
    buckets: Annotated[Width, Field(ge=3)] = 32
    """Half of them for single distances, the others logarithmic up to max_distance."""
    max_distance: Length = 128
    """From here on all distances share the last bucket."""
    shared: bool = True
    """One table for all layers, or one per layer."""

    @property
    def is_shared(self) -> bool:
        """Whether all layers add one table to their scores."""
        return self.shared

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        """A number per bucket and head, where layers share them."""
        return self.buckets * n_heads if self.shared else 0

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        """A number per bucket and head, where each layer has its own."""
        return 0 if self.shared else self.buckets * n_heads

    def saved_for_scores(self, this: Pass, n_heads: int, query_width: int) -> float:
        """The bucket of every pair."""
        return INDEX_BYTES * this.mask_pairs


class Alibi(Position):
    """A bias falling linearly with the distance, steeper in some heads (Press 2021)."""

    kind: Literal["alibi"] = "alibi"
    display_name: ClassVar[str] = "ALiBi"
    acts_on: ClassVar[ActsOn] = "scores"
    max_bias: Positive = 8.0
    """Head i of h falls by 2^(-max_bias i / h) per token; interleaved when h is no power of two."""
    form: Literal["distance", "falcon"] = "distance"
    """distance: -slope * distance, added to the scaled scores; falcon: slope * key position, both rounded to bfloat16,
    added before the scores are scaled (Falcon-RW)."""


class NoScaling(Settings):
    """RoPE's angles as they are."""

    kind: Literal["none"] = "none"


class LinearScaling(Settings):
    """All frequencies divided by the factor (Chen 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Longer
    """How many times longer than in training."""


class DynamicNTK(Settings):
    """Theta grows with the sequence once it is longer than the original; cached decoding then differs from the full
    pass by design, for earlier keys were rotated at another theta."""

    kind: Literal["dynamic"] = "dynamic"
    factor: Stretch
    """How fast theta grows."""
    original_max_seq_len: Length
    """Up to here nothing changes."""


class Llama3Scaling(Settings):
    """Long waves stretched, short ones kept, a blend between (Llama 3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: Longer
    """How much long waves are stretched."""
    low_freq_factor: Positive = 1.0
    """Waves longer than original / this are stretched."""
    high_freq_factor: Positive = 4.0
    """Waves shorter than original / this are kept."""
    original_max_seq_len: Length = 8192
    """Length before the stretch."""


class Yarn(Settings):
    """Frequencies interpolated by how often they rotate within the original length (Peng 2023)."""

    kind: Literal["yarn"] = "yarn"
    factor: Stretch
    """How many times longer than in training."""
    original_max_seq_len: Length
    """Length before the stretch."""
    beta_fast: Positive = 32.0
    """Pairs that rotate more often than this are kept."""
    beta_slow: Positive = 1.0
    """Pairs that rotate less often than this are interpolated."""
    truncate: bool = True
    """Round the range between the two outward to whole pairs."""
    attention_factor: Positive | None = None
    """Factor on cos and sin. null: 0.1 ln(factor) + 1."""


class Longrope(Settings):
    """A factor per pair, one list for short and one for long sequences (Ding 2024). A cache that is filled on both
    sides of the original length holds keys of both lists; `generate` reads the text again there."""

    kind: Literal["longrope"] = "longrope"
    original_max_seq_len: Annotated[Length, Field(ge=2)]
    """Longer sequences take the long factors, whole."""
    short_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divides each pair's frequency up to the original length."""
    long_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divides each pair's frequency beyond it."""
    factor: Stretch
    """How many times longer than in training; decides attention_factor, and is 1 where that is given."""
    attention_factor: Positive | None = None
    """Factor on cos and sin. null: sqrt(1 + ln(factor) / ln(original))."""


class Proportional(Settings):
    """p-RoPE: only the fastest pairs rotate, the others are left as they are (Barbero 2024)."""

    kind: Literal["proportional"] = "proportional"
    turning: Annotated[float, Field(gt=0, lt=1)]
    """Share of the pairs that rotate."""

    def rotated_pairs(self, n: int) -> int:
        """How many of the pairs of n dimensions rotate."""
        return int(self.turning * n // 2)


RopeScaling = Annotated[
    NoScaling | LinearScaling | DynamicNTK | Llama3Scaling | Yarn | Longrope | Proportional,
    Field(discriminator="kind"),
]


class Rope(Position):
    """Rotary embedding of queries and keys (Su 2021)."""

    kind: Literal["rope"] = "rope"
    display_name: ClassVar[str] = "RoPE"
    acts_on: ClassVar[ActsOn] = "queries"
    theta: Theta = 10000.0
    """Base of the rotation frequencies."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of each head that is rotated: its first int(head_dim * fraction) dimensions."""
    pairing: Literal["half", "interleaved"] = "half"
    """Which dimensions rotate together: i with i + dim/2 (rotate_half), or 2i with 2i + 1."""
    order: Literal["after_qk_norm", "before_qk_norm"] = "after_qk_norm"
    """Queries and keys are rotated after or before their norm (Hunyuan: before)."""
    scaling: RopeScaling = NoScaling()
    """How the angles stretch for sequences longer than in training."""

    def rotated(self, width: int) -> float:
        """Return the fraction of `width` that rotates."""
        return width * self.fraction
