"""Multi-head attention: how many heads, how wide, what happens to queries, keys and what is mixed."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archlab.config.components.any_attention import AnyAttention, QueryHeads
from archlab.config.components.component import Site, StateTensor, shared_out
from archlab.config.components.norm import AnyLayerNorm, AnyRMSNorm, NoNorm
from archlab.config.components.visibility import keys_kept
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Index, Length, Positive, Settings, Width
from archlab.errors import UserError


class _Scoped(Settings):
    scope: Literal["head", "each_head", "width"] = "head"
    """head: over each head, one weight [head_dim] for all (Qwen 3); each_head: with weights of its own
    [heads, head_dim] (Command R+); width: over all heads at once, before the split (OLMo 2)."""


class QKLayerNorm(_Scoped, AnyLayerNorm):
    """Layer norm of queries and keys."""

    @property
    def saved_per_number(self) -> int:
        """The input. If each head has weights of its own, torch's fused norm lacks them: what they multiply, too."""
        return 2 if self.scope == "each_head" and self.weight else 1


class QKRMSNorm(_Scoped, AnyRMSNorm):
    """RMS norm of queries and keys."""


QKNorm = Annotated[QKLayerNorm | QKRMSNorm | NoNorm, Field(discriminator="kind")]


class OutputGate(Settings):
    """Factors on what attention gives, before the output projection, made from what it reads (Qwen3-Next, Trinity)."""

    per: Literal["element", "head"] = "element"
    """A factor for every element, or one for every head."""
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    """Of the projection that makes the factors."""
    bias: bool = False
    """A bias on that projection."""


class Temperature(Settings):
    """Queries grow with their position: by 1 + beta ln(1 + floor((position + offset) / length)) (Llama 4)."""

    beta: Positive
    """How fast."""
    length: Length
    """Tokens after each of which the factor changes."""
    offset: Index = 0
    """Added to positions, which count from 0 (Llama 4: 1)."""


class _Shape(QueryHeads):
    n_kv_heads: Derived[Heads] = DERIVED
    """Key/value heads: n_heads MHA, 1 MQA (Shazeer 2019), between GQA (Ainslie 2023). null: n_heads."""
    head_dim: Derived[Width] = DERIVED
    """Width of one query and key; n_heads * head_dim need not be d_model. null: d_model / n_heads."""
    v_dim: Derived[Width] = DERIVED
    """Width of one value. null: head_dim."""


class MultiHead(AnyAttention, _Shape):
    """Multi-head attention, MHA to MQA."""

    kind: Literal["multihead"] = "multihead"
    display_name: ClassVar[str] = "multi-head attention"
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the output projection."""
    qk_norm: QKNorm = NoNorm()
    """Norm of queries and keys before their product (Henry 2020)."""
    clip_qkv: Positive | None = None
    """Queries, keys and values are clamped to [-c, c] right after their projection (OLMo, MPT). null: not."""
    temperature: Temperature | None = None
    """Queries, normalised and rotated, grow with their position. null: not."""
    sinks: bool = False
    """A learned score per head takes part in the softmax and has no value, so that the weights need not sum to 1
    (gpt-oss)."""
    sub_norm: bool = False
    """One more norm, of the block's kind, before the output projection (BitNet)."""
    gate: OutputGate | None = None
    """Factors on what the output projection reads. null: none."""

    rotary_field: ClassVar[str] = "head_dim"

    def resolve(self, d_model: int) -> Self:
        """Return the same attention with the number and widths of its heads, and its scale, written out."""
        head_dim = self.head_dim or d_model // self.n_heads
        derived = {
            "n_kv_heads": self.n_kv_heads or self.n_heads,
            "head_dim": head_dim,
            "v_dim": self.v_dim or head_dim,
            "scale": self.scale or 1 / math.sqrt(max(head_dim, 1)),
        }
        return self.model_copy(update=derived)

    @property
    def query_width(self) -> int:
        """Dimensions of one query and one key."""
        return self.head_dim

    @property
    def out_width(self) -> int:
        """What the output projection reads: the values of all heads."""
        return self.n_heads * self.v_dim

    @property
    def gate_width(self) -> int:
        """Factors per token that the output gate makes."""
        if self.gate is None:
            return 0
        return self.n_heads if self.gate.per == "head" else self.out_width

    @property
    def qkv_width(self) -> int:
        """Queries, keys and values of one token."""
        return (self.n_heads + self.n_kv_heads) * self.head_dim + self.n_kv_heads * self.v_dim

    def describe(self) -> dict[str, str]:
        """Heads, and how far they see."""
        width = f"{self.head_dim}" if self.v_dim == self.head_dim else f"{self.head_dim}:{self.v_dim}"
        return {"q/kv/dim": f"{self.n_heads}/{self.n_kv_heads}/{width}", "window": self.describe_visibility()}

    def parameters(self, site: Site) -> dict[str, int]:
        """Projections and sinks, norms of queries, keys and what is mixed, a table of distances beside the scores."""
        d, sinks = site.d_model, self.n_heads * self.sinks
        projections = self.qkv_width * (d + self.qkv_bias) + (self.out_width + self.out_bias) * d
        gate = self.gate_width * (d + (self.gate is not None and self.gate.bias))
        norms = self._qk_norms() + self.sub_norm * site.norm.n_parameters(self.out_width)
        positions = site.position.of_a_layer(self.n_heads, self.query_width)
        return {"attention": projections + gate + sinks, "norms": norms, "positions": positions}

    def vectors(self, site: Site) -> int:
        """Biases and sinks."""
        of_gate = self.gate_width * (self.gate is not None and self.gate.bias)
        return self.qkv_width * self.qkv_bias + site.d_model * self.out_bias + of_gate + self.n_heads * self.sinks

    def share(self, tensor: int) -> Self:
        """Some of the query heads and of the KV heads; where there are more devices than these, a copy of one."""
        n_heads, K = shared_out(self.n_heads, tensor, "query heads"), self.n_kv_heads
        if K % tensor and tensor % K:
            raise UserError(f"{tensor} devices are neither a divisor nor a multiple of the {K} KV heads")
        return self.model_copy(update={"n_heads": n_heads, "n_kv_heads": max(1, K // tensor)})

    def _qk_norms(self) -> int:
        norm = self.qk_norm
        if isinstance(norm, NoNorm) or norm.scope == "head":
            return 2 * norm.n_parameters(self.head_dim)
        return sum(norm.n_parameters(n * self.head_dim) for n in (self.n_heads, self.n_kv_heads))

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """Projections of every token, norms and rotations of queries and keys, the scores, the gate."""
        d, queries_keys = site.d_model, (self.n_heads + self.n_kv_heads) * self.head_dim
        yield this.product("projections", d, self.qkv_width, bias=self.qkv_width * self.qkv_bias)
        if self.clip_qkv is not None:
            yield this.element_wise("element-wise", "projections", self.qkv_width, flops=2, saved=1)
        yield from this.norm(self.qk_norm, queries_keys, self._qk_norms())
        yield from self.rotating(site, this, self.n_heads + self.n_kv_heads)
        if self.temperature is not None:
            yield this.element_wise("element-wise", "positions", self.n_heads * self.head_dim, flops=1)
        made = self.n_kv_heads * (self.head_dim + self.v_dim)
        yield from self.mixing(site, this, self.head_dim, self.v_dim, made, self.n_heads * self.sinks)
        yield from this.norm(site.norm if self.sub_norm else NoNorm(), self.out_width)
        if self.gate is not None:
            yield this.product(
                "projections", d, self.gate_width, bias=self.gate_width * self.gate.bias, shares_input=True
            )
            yield from this.activation("projections", self.gate.activation, self.gate_width)
            # It keeps what it multiplies and the factors.
            saved = 1 + self.gate_width / self.out_width
            yield this.element_wise("element-wise", "projections", self.out_width, flops=1, read=2, saved=saved)
        yield this.product("projections", self.out_width, d, bias=d * self.out_bias)

    def _lies_by_head(self, site: Site, this: Pass) -> bool:
        """Return whether torch's norms or a rotation of some dimensions copy the queries head by head."""
        norm, rotated = self.qk_norm, site.position.rotated(self.head_dim)
        is_partial = site.position.acts_on == "queries" and rotated < self.head_dim
        if isinstance(norm, NoNorm) or norm.scope != "head":
            return is_partial
        return is_partial or isinstance(norm, QKLayerNorm) or not norm.weight or norm.cast == "before_weight"

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Keys and values of the tokens that may still be seen."""
        slots = keys_kept(self, capacity)
        return tuple(
            StateTensor(name, (self.n_kv_heads, slots, width), per_token=True)
            for name, width in (("k", self.head_dim), ("v", self.v_dim))
        )
