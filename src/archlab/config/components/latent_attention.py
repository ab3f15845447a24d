"""Multi-head latent attention, which computes the keys and values of all heads from one narrow vector per token
(DeepSeek-V2)."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import ProjectionShape, RoleName, Site, StateTensor, divide_evenly
from archlab.config.components.norm import RMSNorm
from archlab.config.components.visibility import keys_kept
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Positive, Width


class Latent(AnyAttention):
    """Multi-head latent attention (MLA, DeepSeek-V2). For each token, a cache stores one narrow vector and the part of
    the key that all heads share.

    Queries and keys have two parts. The part of width nope_dim differs between heads and is never rotated. The part of
    width rope_dim is rotated by the position encoding. All heads share the rotated part of the key.
    """

    kind: Literal["latent"] = "latent"
    display_name: ClassVar[str] = "latent attention"
    q_rank: Width | None = None
    """Width of the narrow vector from which queries are computed. null: queries are computed from the residual
    stream itself."""
    kv_rank: Width
    """Width of the narrow vector from which keys and values are computed."""
    nope_dim: Width
    """Width of the part of each query and key that is never rotated."""
    rope_dim: Width
    """Width of the part of each query and key that the position encoding rotates."""
    v_dim: Derived[Width] = DERIVED
    """Width of one value. null: nope_dim."""
    qkv_bias: bool = False
    """Whether the projections to the narrow vectors have biases."""
    out_bias: bool = False
    """Whether the output projection has a bias."""
    norm_eps: Positive = 1e-6
    """Small number added to the mean square before the square root, in the RMS norms of the narrow vectors."""

    rotary_field: ClassVar[str] = "rope_dim"

    def resolve(self, d_model: int) -> Self:
        scale = self.scale or 1 / math.sqrt(self.query_width)
        return self.model_copy(update={"v_dim": self.v_dim or self.nope_dim, "scale": scale})

    @property
    def query_width(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def kept_width(self) -> int:
        """Number of elements that a cache stores per token."""
        return self.kv_rank + self.rope_dim

    @property
    def narrow_norm(self) -> RMSNorm:
        """Norm of the narrow vectors. It casts before the weight multiplies, as the published code does."""
        return RMSNorm(eps=self.norm_eps, cast="before_weight")

    def describe(self) -> dict[str, str]:
        return {
            "q/kv/dim": f"{self.n_heads}/latent {self.kept_width}/{self.query_width}:{self.v_dim}",
            "window": self.describe_visibility(),
        }

    def parameters(self, site: Site) -> dict[str, int]:
        norms = self.narrow_norm.n_parameters((self.q_rank or 0) + self.kv_rank)
        return {
            "attention": self.in_projections(site) + self.vectors(site),
            "norms": norms,
            "positions": self._positions(site),
        }

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "narrow", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        d, H, rank = site.d_model, self.n_heads, self.q_rank
        of_queries = {"q_down": ProjectionShape(d, rank)} if rank else {}
        return {
            **of_queries,
            "q_up": ProjectionShape(rank or d, H * self.query_width, "latent" if rank else "input"),
            "kv_down": ProjectionShape(d, self.kept_width),
            "kv_up": ProjectionShape(self.kv_rank, H * (self.nope_dim + self.v_dim), "latent"),
            "out": ProjectionShape(H * self.v_dim, d, "mixed"),
        }

    def vectors(self, site: Site) -> int:
        narrow = (self.q_rank or 0) + self.kept_width
        return self.qkv_bias * narrow + self.out_bias * site.d_model

    def share(self, tensor: int) -> Self:
        """Return the attention with a fraction of its heads. Every device computes all narrow vectors."""
        return self.model_copy(update={"n_heads": divide_evenly(self.n_heads, tensor, "query heads")})

    def absorbing_is_less(self, n_queries: int) -> bool:
        """Return whether absorbed attention needs fewer multiplications than expanded attention for `n_queries` new
        tokens.

        The multiplications are counted per head and visible key. In the absorbed form, each query costs 2 kept_width.
        In the expanded form, each query costs nope_dim + rope_dim + v_dim, and computing the key and value once costs
        kv_rank (nope_dim + v_dim). `model/latent_attention.py` explains both forms.
        """
        kv_width = self.nope_dim + self.v_dim
        return n_queries * (2 * self.kv_rank + self.rope_dim - kv_width) <= self.kv_rank * kv_width

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the projections of every token, the norms of the narrow vectors, and the scores.

        The expanded form computes the keys and values of all heads for every visible token. Training uses this form.
        The absorbed form, for a few new tokens with a cache, computes no keys and values, but multiplies more per
        query-key pair. In the absorbed form, each head has keys of width kept_width and values of width kv_rank.
        """
        d, H, rank = site.d_model, self.n_heads, self.q_rank or 0
        is_absorbed = self._is_absorbed(model_pass)
        if rank:
            yield model_pass.product("projections", d, rank, bias=rank * self.qkv_bias)
            yield from model_pass.norm(self.narrow_norm, rank)
        yield model_pass.product("projections", rank or d, H * self.query_width)
        yield model_pass.product(
            "projections", d, self.kept_width, bias=self.kept_width * self.qkv_bias, shares_input=True
        )
        yield from model_pass.norm(self.narrow_norm, self.kv_rank)
        yield from self.rotating(site, model_pass, H + 1)
        # In queries and in keys, the rotated and the unrotated parts are concatenated.
        yield model_pass.element_wise("element-wise", "positions", H * self.query_width, flops=0)
        yield model_pass.element_wise(
            "element-wise", "positions", (1 if is_absorbed else H) * self.query_width, flops=0
        )
        kv_width = H * (self.nope_dim + self.v_dim)
        rows = None if is_absorbed else model_pass.texts * model_pass.context
        expanded = model_pass.product("projections", self.kv_rank, kv_width, rows=rows)
        if self.v_dim == self.query_width:  # kept as part of this product, because no kernel pads values of that width
            expanded = expanded._replace(
                saved=expanded.saved + model_pass.rows * H * self.nope_dim * model_pass.bytes_each
            )
        yield expanded._replace(times=2) if is_absorbed else expanded  # absorbed: once for queries, once for outputs
        if is_absorbed:
            # Kernels take the whole key as the value. Later, the output of the key's rotated part is dropped.
            value = self.kv_rank if model_pass.counting == "visible" else self.kept_width
            yield from self.mixing(site, model_pass, self.kept_width, value, self.kept_width)
        else:
            kv_width = H * (self.query_width + self.v_dim)
            yield from self.mixing(site, model_pass, self.query_width, self.v_dim, kv_width)
        yield model_pass.product("projections", H * self.v_dim, d, bias=d * self.out_bias)

    def _is_absorbed(self, model_pass: Pass) -> bool:
        return model_pass.is_cached and self.absorbing_is_less(model_pass.tokens)

    def _is_stored_by_head(self, site: Site, model_pass: Pass) -> bool:
        return not self._is_absorbed(model_pass)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        return (StateTensor("latent", (1, keys_kept(self, capacity), self.kept_width), per_token=True),)
