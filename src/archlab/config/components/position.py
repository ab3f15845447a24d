"""Position encodings, which tell the model the position of each token."""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from archlab.config.components.rope_scaling import NoScaling, RopeScaling
from archlab.config.components.work import FLOAT32_BYTES, Pass
from archlab.config.core.base import Index, Length, Positive, Width, kind_of
from archlab.config.core.registry import Registered, Section
from archlab.errors import UserError

Theta = Annotated[float, Field(gt=1)]

INDEX_BYTES = 8
"""Size in bytes of one index into a table."""

ActsOn = Literal["embedding", "scores", "queries", "nothing"]
ON_ATTENTION: tuple[ActsOn, ...] = ("scores", "queries")
"""Values of `acts_on` for position encodings that have an effect only in a model with attention."""


class Position(Registered):
    """Base class of the position encodings."""

    section: ClassVar[Section] = "position"
    default_kind: ClassVar[str | None] = "rope"

    acts_on: ClassVar[ActsOn]
    """Place where the encoding acts. `embedding`: it is added once to the token embedding. `scores`: it adds a term to
    each score, which depends on the distance between query and key. `queries`: it rotates queries and keys."""
    reads_queries: ClassVar[bool] = False
    """Whether the term added to a score depends on the query. If not, all sequences of a batch share one table of these
    terms."""

    @property
    def counts_later_keys(self) -> bool:
        """Whether the encoding is defined for keys after the query, too."""
        return self.acts_on != "scores"

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if `acts_on` is unknown, because the model would then ignore the encoding."""
        if cls.acts_on not in get_args(ActsOn):
            allowed = ", ".join(get_args(ActsOn))
            raise UserError(f"position {kind_of(cls)}: acts_on is {cls.acts_on!r}; allowed: {allowed}")

    @property
    def is_shared(self) -> bool:
        """Whether all layers share one table of terms that they add to their scores."""
        return False

    def rotated(self, width: int) -> float:
        """Return how many of `width` dimensions the encoding rotates, if it rotates queries and keys."""
        return width

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        """Return the number of parameters in the table that all layers share, or in the table of position embeddings.
        Return 0 if there is none."""
        return 0

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        """Return the number of parameters in each layer's own table of terms added to its scores. Return 0 if there is
        none."""
        return 0

    def projection_of_a_layer(self, d_model: int, n_heads: int, query_width: int) -> int:
        """Return the number of parameters of the matrix with which each layer projects the embeddings of distances.
        Return 0 if layers have no such matrix."""
        return 0

    def distances(self, n_keys: int) -> int:
        """Return the number of distances for which each query is multiplied by a vector, if it sees `n_keys` keys.
        Return 0 if there are no such vectors."""
        return 0

    @property
    def learns_scores(self) -> bool:
        """Whether the encoding adds learned terms to the scores."""
        return self.acts_on == "scores" and self.of_all_layers(1, 1, 1) + self.of_a_layer(1, 1) > 0

    def saved_for_scores(self, model_pass: Pass, n_heads: int, query_width: int) -> float:
        """Return the bytes that training stores for the gradient of the learned table: per layer, or in total if all
        layers share the table."""
        return 0.0


class NoPosition(Position):
    """No position encoding. Only the causal mask tells the model about the order of tokens (NoPE)."""

    kind: Literal["none"] = "none"
    display_name: ClassVar[str] = "NoPE"
    acts_on: ClassVar[ActsOn] = "nothing"


class Sinusoidal(Position):
    """Fixed sines and cosines added to the token embedding (Vaswani 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    display_name: ClassVar[str] = "sinusoid"
    acts_on: ClassVar[ActsOn] = "embedding"
    theta: Theta = 10000.0
    """Base of the geometric series of wavelengths."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """Order of the features. `interleaved`: the sine and the cosine of each frequency are adjacent (Vaswani 2017).
    `halves`: all sines come first, then all cosines."""
    offset: Index = 0
    """Number added to the position, which counts from 0 (XGLM: 2)."""


class Learned(Position):
    """Learned vector per position, added to the token embedding. The table has a row for each of max_seq_len
    positions."""

    kind: Literal["learned"] = "learned"
    display_name: ClassVar[str] = "learned"
    acts_on: ClassVar[ActsOn] = "embedding"
    offset: Index = 0
    """Number of unused rows before the row of the first position (OPT: 2)."""

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        return (self.offset + max_seq_len) * d_model


class Shaw(Position):
    """Learned vector a per distance, added to the keys: q.(k + a) (Shaw 2018). Each layer has its own vectors, and
    its heads share them."""

    kind: Literal["shaw"] = "shaw"
    display_name: ClassVar[str] = "Shaw"
    acts_on: ClassVar[ActsOn] = "scores"
    reads_queries: ClassVar[bool] = True
    max_distance: Width = 16
    """Distance limit in tokens. This distance and all larger ones share the last vector."""

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        return (self.max_distance + 1) * query_width

    def distances(self, n_keys: int) -> int:
        return self.max_distance + 1

    def saved_for_scores(self, model_pass: Pass, n_heads: int, query_width: int) -> float:
        """Return the bytes of three stored tensors: the distance of every query-key pair, a copy of the queries, and
        the products of the queries with the vectors of all distances."""
        queries = model_pass.rows * n_heads * (query_width + self.max_distance + 1)
        return INDEX_BYTES * model_pass.mask_pairs + FLOAT32_BYTES * queries


class TransformerXL(Position):
    """Projected sinusoids W r per distance, and two learned biases u and v: (q + u).k + (q + v).(W r)
    (Transformer-XL, Dai 2019).

    The projection W and the biases belong to the query heads of one layer. With grouped-query attention, heads that
    share keys have their own projections and biases. Transformer-XL's code can also share the biases among layers
    (`untie_r` is false), but its authors' final models and XLNet do not, so archlab has no field for it. The
    recurrence over segments is not part of this encoding.
    """

    kind: Literal["transformer_xl"] = "transformer_xl"
    display_name: ClassVar[str] = "TransfoXL"
    acts_on: ClassVar[ActsOn] = "scores"
    reads_queries: ClassVar[bool] = True

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        return 2 * n_heads * query_width

    def projection_of_a_layer(self, d_model: int, n_heads: int, query_width: int) -> int:
        return d_model * n_heads * query_width

    def distances(self, n_keys: int) -> int:
        return n_keys

    def saved_for_scores(self, model_pass: Pass, n_heads: int, query_width: int) -> float:
        """Return the bytes of four stored tensors: the distance of every query-key pair, the queries plus v, the
        projected vectors of all distances, and the products of both."""
        n = model_pass.context
        queries = model_pass.rows * n_heads * (query_width + n)
        return INDEX_BYTES * model_pass.mask_pairs + FLOAT32_BYTES * (queries + n * n_heads * query_width)


class T5(Position):
    """Learned bias per head and bucket of distances, added to the scores (T5, Raffel 2020).

    If a query can see later keys, half of the buckets are for keys after the query."""

    kind: Literal["t5"] = "t5"
    display_name: ClassVar[str] = "T5"
    acts_on: ClassVar[ActsOn] = "scores"
    buckets: Annotated[Width, Field(ge=3)] = 32
    """Number of buckets of distances. In each direction that a query sees, half of the buckets hold one distance
    each. The others are spaced logarithmically up to max_distance."""
    max_distance: Length = 128
    """Distance limit in tokens. This distance and all larger ones share the last bucket."""
    shared: bool = True
    """Whether all layers share one table of biases. false: each layer has its own table."""

    @property
    def counts_later_keys(self) -> bool:
        return True

    @property
    def is_shared(self) -> bool:
        return self.shared

    def of_all_layers(self, d_model: int, max_seq_len: int, n_heads: int) -> int:
        return self.buckets * n_heads if self.shared else 0

    def of_a_layer(self, n_heads: int, query_width: int) -> int:
        return 0 if self.shared else self.buckets * n_heads

    def saved_for_scores(self, model_pass: Pass, n_heads: int, query_width: int) -> float:
        return INDEX_BYTES * model_pass.mask_pairs


class Alibi(Position):
    """Bias on the scores that falls linearly with the distance, with a different slope in each head (ALiBi, Press
    2021)."""

    kind: Literal["alibi"] = "alibi"
    display_name: ClassVar[str] = "ALiBi"
    acts_on: ClassVar[ActsOn] = "scores"
    max_bias: Positive = 8.0
    """Constant in the exponent of the slopes: head i of h heads has the slope 2^(-max_bias i / h). If h is not a power
    of two, slopes are interleaved as in the paper."""
    form: Literal["distance", "falcon"] = "distance"
    """Form of the bias. `distance`: -slope * |distance|, added to the scaled scores. `falcon`: slope * key position,
    both rounded to bfloat16, added before the scores are scaled (Falcon-RW)."""

    @property
    def counts_later_keys(self) -> bool:
        return self.form == "distance"


class Rope(Position):
    """Rotary embedding of queries and keys (RoPE, Su 2021)."""

    kind: Literal["rope"] = "rope"
    display_name: ClassVar[str] = "RoPE"
    acts_on: ClassVar[ActsOn] = "queries"
    theta: Theta = 10000.0
    """Base of the rotation frequencies."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the dimensions of each head that are rotated: the first int(head_dim * fraction) dimensions."""
    pairing: Literal["half", "interleaved"] = "half"
    """Dimensions that rotate together as a pair. `half`: i and i + dim/2 (rotate_half). `interleaved`: 2i and 2i +
    1."""
    order: Literal["after_qk_norm", "before_qk_norm"] = "after_qk_norm"
    """Order of the rotation and the norm of queries and keys: the rotation comes after the norm or before it (Hunyuan:
    before)."""
    scaling: RopeScaling = NoScaling()
    """Scaling of the rotation angles for sequences longer than those of the original training run."""

    def rotated(self, width: int) -> float:
        return width * self.fraction
