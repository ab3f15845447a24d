"""Latent attention: the keys and values of all heads are made from one narrow vector per token (DeepSeek-V2)."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import RoleName, Site, StateTensor, shared_out
from archlab.config.components.norm import RMSNorm
from archlab.config.components.visibility import keys_kept
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Positive, Width


class Latent(AnyAttention):
    """Multi-head latent attention: a cache keeps one narrow vector per token, and one part of a key for all heads.

    A query and a key have two parts: of `nope_dim`, each head its own and never rotated, and of `rope_dim`, where a key
    has one for all heads, which positions rotate.
    """

    kind: Literal["latent"] = "latent"
    display_name: ClassVar[str] = "latent attention"
    q_rank: Width | None = None
    """Width of the narrow vector that queries are made from. null: they are made from the stream itself."""
    kv_rank: Width
    """Width of the narrow vector that keys and values are made from."""
    nope_dim: Width
    """Width of the part of a query and key that is never rotated."""
    rope_dim: Width
    """Width of the part that positions rotate."""
    v_dim: Derived[Width] = DERIVED
    """Width of one value. null: nope_dim."""
    qkv_bias: bool = False
    """Biases on the projections to the narrow vectors."""
    out_bias: bool = False
    """Bias on the output projection."""
    norm_eps: Positive = 1e-6
    """Epsilon of the RMS norms on the narrow vectors."""

    rotary_field: ClassVar[str] = "rope_dim"

    def resolve(self, d_model: int) -> Self:
        """Return the same attention with the width of its values and its scale written out."""
        scale = self.scale or 1 / math.sqrt(self.query_width)
        return self.model_copy(update={"v_dim": self.v_dim or self.nope_dim, "scale": scale})

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
        norms = self.narrow_norm.n_parameters((self.q_rank or 0) + self.kv_rank)
        positions = site.position.of_a_layer(self.n_heads, self.query_width)
        return {"attention": self._matrices(site) + self.vectors(site), "norms": norms, "positions": positions}

    def roles(self) -> tuple[RoleName, ...]:
        """Return the usual roles and `narrow`, that of its narrow vectors."""
        return ("input", "narrow", "output")

    def vectors(self, site: Site) -> int:
        """Biases."""
        narrow = (self.q_rank or 0) + self.kept_width
        return self.qkv_bias * narrow + self.out_bias * site.d_model

    def share(self, tensor: int) -> Self:
        """Some of the heads; all devices make the narrow vectors that their heads read."""
        return self.model_copy(update={"n_heads": shared_out(self.n_heads, tensor, "query heads")})

    def _matrices(self, site: Site) -> int:
        """Numbers in all projections."""
        d, rank = site.d_model, self.q_rank or 0
        queries = d * rank + (rank or d) * self.n_heads * self.query_width
        keys_values = d * self.kept_width + self.kv_rank * self.n_heads * (self.nope_dim + self.v_dim)
        return queries + keys_values + self.n_heads * self.v_dim * d

    def absorbing_is_less(self, n_queries: int) -> bool:
        """Whether so many new tokens cost fewer multiplications absorbed than expanded (see the module), per head and
        key that is seen: kept_width twice for each query, against nope_dim + rope_dim and v_dim for each and
        kv_rank (nope_dim + v_dim) once."""
        made = self.nope_dim + self.v_dim
        return n_queries * (2 * self.kv_rank + self.rope_dim - made) <= self.kv_rank * made

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """Projections of every token, norms of the narrow vectors, and the scores.

        Keys and values of all heads are made, as in training, of every token that is seen. A few tokens after a cache
        make none of them and multiply more per pair instead: a key is kept_width wide in every head, a value kv_rank.
        """
        d, H, rank = site.d_model, self.n_heads, self.q_rank or 0
        is_absorbed = self._is_absorbed(this)
        if rank:
            yield this.product("projections", d, rank, bias=rank * self.qkv_bias)
            yield from this.norm(self.narrow_norm, rank)
        yield this.product("projections", rank or d, H * self.query_width)
        yield this.product("projections", d, self.kept_width, bias=self.kept_width * self.qkv_bias, shares_input=True)
        yield from this.norm(self.narrow_norm, self.kv_rank)
        yield from self.rotating(site, this, H + 1)
        # The parts that rotate and those that do not are put side by side, in queries and in keys.
        yield this.element_wise("element-wise", "positions", H * self.query_width, flops=0)
        yield this.element_wise("element-wise", "positions", (1 if is_absorbed else H) * self.query_width, flops=0)
        made = H * (self.nope_dim + self.v_dim)
        rows = None if is_absorbed else this.texts * this.context
        expanded = this.product("projections", self.kv_rank, made, rows=rows)
        if self.v_dim == self.query_width:  # kept as part of this product, as no kernel pads values of that width
            expanded = expanded._replace(saved=expanded.saved + this.rows * H * self.nope_dim * this.bytes_each)
        yield expanded._replace(times=2) if is_absorbed else expanded  # with queries, and with what is mixed
        if is_absorbed:
            # The whole key is given for a value, of which the part that rotates is left out after.
            value = self.kv_rank if this.counting == "visible" else self.kept_width
            yield from self.mixing(site, this, self.kept_width, value, self.kept_width)
        else:
            made = H * (self.query_width + self.v_dim)
            yield from self.mixing(site, this, self.query_width, self.v_dim, made)
        yield this.product("projections", H * self.v_dim, d, bias=d * self.out_bias)

    def _is_absorbed(self, this: Pass) -> bool:
        return this.is_cached and self.absorbing_is_less(this.tokens)

    def _lies_by_head(self, site: Site, this: Pass) -> bool:
        """Return whether keys and values of all heads are made."""
        return not self._is_absorbed(this)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """The narrow vector and the rotated part of the key, of the tokens that may still be seen."""
        return (StateTensor("latent", (1, keys_kept(self, capacity), self.kept_width), per_token=True),)
