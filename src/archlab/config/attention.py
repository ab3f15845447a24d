"""Attention: how many heads, how wide, which keys they see, how scores become weights."""

import math
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field

from archlab.config.base import Base, Heads, Positive, Width
from archlab.config.component import Absent, Component, Counting, Site, StateTensor, filled_in
from archlab.config.norm import LayerNormScaling, NoNorm, RMSNormScaling
from archlab.config.position import BIASED, T5, Shaw
from archlab.config.visibility import Visibility, is_plain_causal, keys_kept, visible_pairs
from archlab.errors import UserError


class _Scoped(Base):
    scope: Literal["head", "each_head", "width"] = "head"
    """head: over each head, one weight [head_dim] for all (Qwen 3); each_head: with weights of its own
    [heads, head_dim] (Command R+); width: over all heads at once, before the split (OLMo 2)."""


class QKLayerNorm(_Scoped, LayerNormScaling):
    """Layer norm of queries and keys."""


class QKRMSNorm(_Scoped, RMSNormScaling):
    """RMS norm of queries and keys."""


QKNorm = Annotated[QKLayerNorm | QKRMSNorm | NoNorm, Field(discriminator="kind")]


class _Heads(Component):
    n_heads: Heads
    """Query heads."""


class AnyAttention(Visibility, _Heads):
    """What every kind of attention has: query heads, and a rule which keys they see."""

    @property
    def rotary_width(self) -> int:
        """Dimensions of a query's head that RoPE may rotate."""
        raise NotImplementedError


class _Shape(_Heads):
    n_kv_heads: Heads | None = None
    """Key/value heads: n_heads MHA, 1 MQA (Shazeer 2019), between GQA (Ainslie 2023). null: n_heads."""
    head_dim: Width | None = None
    """Width of one head; n_heads * head_dim need not be d_model. null: d_model / n_heads."""


class MultiHead(AnyAttention, _Shape):
    """Multi-head attention, MHA to MQA."""

    kind: Literal["multihead"] = "multihead"  # pyright: ignore[reportIncompatibleVariableOverride]
    scale: Positive | None = None
    """Factor on q.k. null: 1 / sqrt(head_dim)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the output projection."""
    qk_norm: QKNorm = NoNorm()
    """Norm of queries and keys before their product (Henry 2020)."""
    clip_qkv: Positive | None = None
    """Queries, keys and values are clamped to [-c, c] right after their projection (OLMo, MPT). null: not."""
    softcap: Positive | None = None
    """Scores s become c tanh(s / c), before the mask (Gemma 2). null: not."""
    sub_norm: bool = False
    """One more norm, of the block's kind, before the output projection (BitNet)."""

    derived: ClassVar[tuple[str, ...]] = ("n_kv_heads", "head_dim", "scale")

    def resolve(self, d_model: int) -> "ResolvedMultiHead":
        """With the heads' number and width, and the scale, written out."""
        head_dim = self.head_dim or d_model // self.n_heads
        scale = self.scale or 1 / math.sqrt(max(head_dim, 1))
        n_kv_heads = self.n_kv_heads or self.n_heads
        return filled_in(ResolvedMultiHead, self, n_kv_heads=n_kv_heads, head_dim=head_dim, scale=scale)


class ResolvedMultiHead(MultiHead):
    """Multi-head attention with every derived value filled in."""

    n_kv_heads: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    head_dim: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    scale: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]

    @property
    def rotary_width(self) -> int:
        """Dimensions of a head that RoPE may rotate."""
        return self.head_dim

    def describe(self) -> dict[str, str]:
        """Heads and window."""
        window = "-" if self.window is None else str(self.window)
        return {"q/kv/dim": f"{self.n_heads}/{self.n_kv_heads}/{self.head_dim}", "window": window}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections; norms of queries, keys and of what is mixed; a table of distances beside the scores."""
        d, width, kv_width = site.d_model, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        projections = (width + 2 * kv_width) * (d + self.qkv_bias) + (width + self.out_bias) * d
        sub_norm = self.sub_norm * site.norm.n_parameters(width)
        return {"attention": projections, "norms": self._qk_norms() + sub_norm, "positions": self._distances(site)}

    def _qk_norms(self) -> int:
        norm = self.qk_norm
        if isinstance(norm, NoNorm) or norm.scope == "head":
            return 2 * norm.n_parameters(self.head_dim)
        return sum(norm.n_parameters(n * self.head_dim) for n in (self.n_heads, self.n_kv_heads))

    def _distances(self, site: Site) -> int:
        match site.position:
            case T5(shared=False, buckets=buckets):
                return buckets * self.n_heads
            case Shaw(max_distance=max_distance):
                return (max_distance + 1) * self.head_dim
            case _:
                return 0

    def flops(self, site: Site, seq_len: int, counting: Counting) -> dict[str, float]:
        """Projections of every token; one product with k and one with v (with Shaw's vectors one more) per pair."""
        projections = 2 * site.d_model * self.head_dim * (2 * self.n_heads + 2 * self.n_kv_heads)
        products = 3 if isinstance(site.position, Shaw) else 2
        per_pair = products * 2 * self.n_heads * self.head_dim
        return {"projections": projections * seq_len, "scores": per_pair * self._pairs(site, seq_len, counting)}

    def _pairs(self, site: Site, seq_len: int, counting: Counting) -> int:
        """Pairs of a query and a key.

        The fused kernel skips what a plain causal mask hides (but for the edges of its tiles). A window, a bias, a soft
        cap or dropout on the weights takes another path, which multiplies every query with every key. (On a GPU the
        flex kernel skips hidden tiles under a soft cap, too. That is not counted, so that a budget does not depend on
        the machine.) Packed documents have another mask in every window.
        """
        masked = not is_plain_causal(self, seq_len) or self.softcap is not None
        biased = site.position.kind in BIASED
        is_square = counting == "packed" or (counting == "computed" and (masked or biased or site.attention_dropout))
        return seq_len**2 if is_square else visible_pairs(self, seq_len)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Keys and values of the tokens that may still be seen."""
        shape = (self.n_kv_heads, keys_kept(self, capacity), self.head_dim)
        return (StateTensor("k", shape, per_token=True), StateTensor("v", shape, per_token=True))


class NoAttention(Absent):
    """No attention in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


def _multi_head_by_default(value: Any) -> Any:
    return {"kind": "multihead", **value} if isinstance(value, dict) else value


Attention = Annotated[MultiHead | NoAttention, Field(discriminator="kind"), BeforeValidator(_multi_head_by_default)]
ResolvedAttention = Annotated[ResolvedMultiHead | NoAttention, Field(discriminator="kind")]


_C = TypeVar("_C", bound=MultiHead)


def as_multi_head(config: Component, where: str, schema: type[_C] = MultiHead) -> _C:
    """The config as what it is, for code that knows no other kind; UserError where it is another."""
    if isinstance(config, schema):
        return config
    raise UserError(f"model.attention.kind: {config.kind} in {where}; allowed here: multihead")
