"""Latent attention: the keys and values of all heads are made from one narrow vector per token (DeepSeek-V2)."""

import math
from typing import ClassVar, Literal

from archlab.config.any_attention import AnyAttention, AnyResolved
from archlab.config.base import Positive, Width
from archlab.config.component import Counting, Site, StateTensor, filled_in
from archlab.config.norm import RMSNorm
from archlab.config.visibility import keys_kept


class Latent(AnyAttention):
    """Multi-head latent attention: a cache keeps one narrow vector per token, and one part of a key for all heads.

    A query and a key have two parts: of `nope_dim`, each head its own and never rotated, and of `rope_dim`, where a key
    has one for all heads, which positions rotate.
    """

    kind: Literal["latent"] = "latent"  # pyright: ignore[reportIncompatibleVariableOverride]
    q_rank: Width | None = None
    """Width of the narrow vector that queries are made from. null: they are made from the stream itself."""
    kv_rank: Width
    """Width of the narrow vector that keys and values are made from."""
    nope_dim: Width
    """Width of the part of a query and key that is never rotated."""
    rope_dim: Width
    """Width of the part that positions rotate."""
    v_dim: Width | None = None
    """Width of one value. null: nope_dim."""
    qkv_bias: bool = False
    """Biases on the projections to the narrow vectors."""
    out_bias: bool = False
    """Bias on the output projection."""
    norm_eps: Positive = 1e-6
    """Epsilon of the RMS norms on the narrow vectors."""

    rotary_field: ClassVar[str] = "rope_dim"
    derived: ClassVar[tuple[str, ...]] = ("v_dim", "scale")

    def resolve(self, d_model: int) -> "ResolvedLatent":
        """With the values' width and the scale written out."""
        scale = self.scale or 1 / math.sqrt(self.nope_dim + self.rope_dim)
        return filled_in(ResolvedLatent, self, v_dim=self.v_dim or self.nope_dim, scale=scale)


class ResolvedLatent(Latent, AnyResolved):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Latent attention with every derived value filled in."""

    kind: Literal["latent"] = "latent"  # pyright: ignore[reportIncompatibleVariableOverride]
    v_dim: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]

    @property
    def query_width(self) -> int:
        """Dimensions of one query and one key."""
        return self.nope_dim + self.rope_dim

    @property
    def kept_width(self) -> int:
        """Numbers that a cache keeps per token."""
        return self.kv_rank + self.rope_dim

    @property
    def narrow_norm(self) -> RMSNorm:
        """The norm of the narrow vectors, which rounds as the published code does."""
        return RMSNorm(eps=self.norm_eps, cast="before_weight")

    def describe(self) -> dict[str, str]:
        """Heads, and how far they see."""
        return {
            "q/kv/dim": f"{self.n_heads}/latent {self.kept_width}/{self.query_width}:{self.v_dim}",
            "window": self.describe_visibility(),
        }

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections; norms of the narrow vectors; a table of distances beside the scores."""
        narrow = (self.q_rank or 0) + self.kept_width
        biases = self.qkv_bias * narrow + self.out_bias * site.d_model
        norms = self.narrow_norm.n_parameters((self.q_rank or 0) + self.kv_rank)
        positions = site.position.of_a_layer(self.n_heads, self.query_width)
        return {"attention": self._matrices(site) + biases, "norms": norms, "positions": positions}

    def _matrices(self, site: Site) -> int:
        """Numbers in all projections."""
        d, rank = site.d_model, self.q_rank or 0
        queries = d * rank + (rank or d) * self.n_heads * self.query_width
        keys_values = d * self.kept_width + self.kv_rank * self.n_heads * (self.nope_dim + self.v_dim)
        return queries + keys_values + self.n_heads * self.v_dim * d

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """Projections of every token, and the scores, with keys and values of all heads made: as in training.

        Decoding makes none of them and multiplies more per pair instead: a key is kept_width wide in every head, a
        value kv_rank.
        """
        projections = 2 * self._matrices(site) * seq_len
        return {"projections": projections, "scores": self._scores(self.v_dim, site, seq_len, counting)}

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The narrow vector and the rotated part of the key, of the tokens that may still be seen."""
        return (StateTensor("latent", (1, keys_kept(self, capacity), self.kept_width), per_token=True),)
