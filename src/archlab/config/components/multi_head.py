"""Multi-head attention: the number and width of its heads, and the operations on queries, keys and outputs."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archlab.config.components.any_attention import AnyAttention, QueryHeads
from archlab.config.components.component import ProjectionShape, Site, StateTensor, divide_evenly
from archlab.config.components.norm import AnyLayerNorm, AnyRMSNorm, NoNorm
from archlab.config.components.position import Rope
from archlab.config.components.visibility import keys_kept
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Index, Length, Positive, Settings, Width
from archlab.errors import UserError


class _Scoped(Settings):
    scope: Literal["head", "each_head", "width"] = "head"
    """Features that one norm covers. `head`: each head, with one weight of shape [head_dim] for all heads (Qwen 3).
    `each_head`: each head, with its own weight, in one tensor of shape [heads, head_dim] (Command R+). `width`: the
    features of all heads together, before the split into heads (OLMo 2)."""


class QKLayerNorm(_Scoped, AnyLayerNorm):
    """Layer norm of queries and keys."""

    @property
    def saved_per_number(self) -> int:
        """Return the number of stored values per element: 1 for the input, and another 1 if each head has its own
        weight. Torch's fused norm does not support a weight per head, so the values before the multiplication by the
        weight are stored, too."""
        return 2 if self.scope == "each_head" and self.weight else 1


class QKRMSNorm(_Scoped, AnyRMSNorm):
    """RMS norm of queries and keys."""

    @property
    def saved_per_number(self) -> int:
        """Return 2 if each head has its own weight, as for the layer norm, or if the result is cast before the
        multiplication by the weight. Otherwise return 1."""
        return 2 if self.scope == "each_head" and self.weight else super().saved_per_number


QKNorm = Annotated[QKLayerNorm | QKRMSNorm | NoNorm, Field(discriminator="kind")]


class OutputGate(Settings):
    """Gate on the output of attention, before the output projection. The gate is computed from the input of
    attention (Qwen3-Next, Trinity)."""

    per: Literal["element", "head"] = "element"
    """Granularity of the gate: one factor per output element, or one per head."""
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    """Activation that turns the projected input into the factors."""
    bias: bool = False
    """Whether the projection that computes the factors has a bias."""


class ValueNorm(Settings):
    """RMS norm of each value, without a weight (Gemma 4)."""

    eps: Positive = 1e-6
    """Small number added to the mean square before the square root."""


class Temperature(Settings):
    """Factor on queries that grows with their position: 1 + beta ln(1 + floor((position + offset) / length)) (Llama
    4)."""

    beta: Positive
    """Coefficient beta of the logarithm. A larger value makes the factor grow faster."""
    length: Length
    """Number of consecutive positions with the same factor, in tokens."""
    offset: Index = 0
    """Number added to the position, which counts from 0 (Llama 4: 1)."""


class _Shape(QueryHeads):
    """Number of key/value heads, and widths of heads. These fields are in a base class so that files list them before
    the window."""

    n_kv_heads: Derived[Heads] = DERIVED
    """Number of key/value heads: n_heads for MHA, 1 for MQA (Shazeer 2019), or a number between for GQA (Ainslie 2023).
    null: n_heads."""
    head_dim: Derived[Width] = DERIVED
    """Width of one query and of one key. n_heads * head_dim may differ from d_model. null: d_model / n_heads."""
    v_dim: Derived[Width] = DERIVED
    """Width of one value. null: head_dim."""


class MultiHead(AnyAttention, _Shape):
    """Multi-head attention: MHA, GQA or MQA, depending on n_kv_heads."""

    kind: Literal["multihead"] = "multihead"
    display_name: ClassVar[str] = "multi-head attention"
    qkv_bias: bool = False
    """Whether the query, key and value projections have biases."""
    out_bias: bool = False
    """Whether the output projection has a bias."""
    qk_norm: QKNorm = NoNorm()
    """Norm of queries and of keys before their product (Henry 2020)."""
    v_norm: ValueNorm | None = None
    """Norm of each value: v / sqrt(mean(v^2) + eps), without a weight (Gemma 4). null: no norm."""
    keys_as_values: bool = False
    """Whether the values are the projected keys, before the norm and the rotation of keys (Gemma 4's layers without a
    window). Attention then has no projection to values."""
    clip_qkv: Positive | None = None
    """Limit c: queries, keys and values are clamped to [-c, c] right after their projection (OLMo, MPT). null: no
    limit."""
    temperature: Temperature | None = None
    """Factor on the normalized and rotated queries that grows with their position. null: no factor."""
    sinks: bool = False
    """Whether each head has a learned sink: one more score in the softmax, without a value. The weights of the keys can
    then sum to less than 1 (gpt-oss)."""
    sub_norm: bool = False
    """Whether a norm of the block's kind precedes the output projection (BitNet)."""
    gate: OutputGate | None = None
    """Gate on the output of attention, before the output projection. null: no gate."""

    rotary_field: ClassVar[str] = "head_dim"

    def resolve(self, d_model: int) -> Self:
        """Return the config with every derived value filled in."""
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
        return self.head_dim

    @property
    def out_width(self) -> int:
        """Width of the values of all query heads together, which is the input width of the output projection."""
        return self.n_heads * self.v_dim

    @property
    def gate_width(self) -> int:
        if self.gate is None:
            return 0
        return self.n_heads if self.gate.per == "head" else self.out_width

    @property
    def qkv_width(self) -> int:
        values = 0 if self.keys_as_values else self.n_kv_heads * self.v_dim
        return (self.n_heads + self.n_kv_heads) * self.head_dim + values

    @property
    def value_norm(self) -> AnyRMSNorm | NoNorm:
        return NoNorm() if self.v_norm is None else AnyRMSNorm(weight=False, eps=self.v_norm.eps)

    def describe(self) -> dict[str, str]:
        """Return the number and width of heads, and the window, for the table of layers."""
        width = f"{self.head_dim}" if self.v_dim == self.head_dim else f"{self.head_dim}:{self.v_dim}"
        return {"q/kv/dim": f"{self.n_heads}/{self.n_kv_heads}/{width}", "window": self.describe_visibility()}

    def parameters(self, site: Site) -> dict[str, int]:
        """Return the parameter counts by row of the parameter table."""
        learned = self.in_projections(site) + self.vectors(site)
        norms = self._qk_norms() + self.sub_norm * site.norm.n_parameters(self.out_width)
        return {"attention": learned, "norms": norms, "positions": self._positions(site)}

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        """Return the projections to queries, keys, values and gate, and that of the output. The keys and values of
        cross-attention come from the encoder's output."""
        d, K, of_keys = site.d_model, self.n_kv_heads, "source" if site.reads_source else "input"
        gate = {} if self.gate is None else {"gate": ProjectionShape(d, self.gate_width)}
        values = {} if self.keys_as_values else {"v": ProjectionShape(d, K * self.v_dim, of_keys)}
        return {
            "q": ProjectionShape(d, self.n_heads * self.head_dim),
            "k": ProjectionShape(d, K * self.head_dim, of_keys),
            **values,
            **gate,
            "out": ProjectionShape(self.out_width, d, "mixed"),
        }

    def vectors(self, site: Site) -> int:
        """Return the number of parameters outside weight matrices: biases and sinks."""
        gate_biases = self.gate_width * (self.gate is not None and self.gate.bias)
        return self.qkv_width * self.qkv_bias + site.d_model * self.out_bias + gate_biases + self.n_heads * self.sinks

    def share(self, tensor: int) -> Self:
        """Return the attention with a fraction of its query and KV heads. If there are more devices than KV heads,
        each device has a copy of one KV head."""
        n_heads, K = divide_evenly(self.n_heads, tensor, "query heads"), self.n_kv_heads
        if K % tensor and tensor % K:
            raise UserError(f"{K} KV heads cannot be divided among {tensor} devices; use a divisor or multiple of {K}")
        return self.model_copy(update={"n_heads": n_heads, "n_kv_heads": max(1, K // tensor)})

    def _qk_norms(self) -> int:
        return self._qk_norms_of(self.n_heads) + self._qk_norms_of(self.n_kv_heads)

    def _qk_norms_of(self, heads: int) -> int:
        """Return the number of parameters of the norm of `heads` query or key heads."""
        norm = self.qk_norm
        is_alike = isinstance(norm, NoNorm) or norm.scope == "head"
        return norm.n_parameters(self.head_dim if is_alike else heads * self.head_dim)

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations: projections, norms and rotations of queries and keys, scores, gate, output
        projection."""
        d = site.d_model
        if site.reads_source:
            yield from self._inputs_of_cross(site, model_pass)
        else:
            yield from self._inputs(d, model_pass, self.qkv_width, self.n_heads + self.n_kv_heads, self._qk_norms())
        rows_of_keys = model_pass.of_source if site.reads_source else model_pass
        # In float32, the norms of keys and values store one tensor. From 16 bits, each converts the projected keys.
        is_shared = (
            self.keys_as_values and self._norm_of_keys_is_first(site) and rows_of_keys.bytes_each == FLOAT32_BYTES
        )
        yield from rows_of_keys.norm(self.value_norm, self.n_kv_heads * self.v_dim, shares_input=is_shared)
        yield from self.rotating(site, model_pass, self.n_heads + self.n_kv_heads)
        if self.temperature is not None:
            yield model_pass.element_wise("element-wise", "positions", self.n_heads * self.head_dim, flops=1)
        kv_width = self.n_kv_heads * (self.head_dim + self.v_dim)
        sinks = self.n_heads * self.sinks
        yield from self.mixing(site, model_pass, self.head_dim, self.v_dim, kv_width, sinks)
        yield from model_pass.norm(site.norm if self.sub_norm else NoNorm(), self.out_width)
        if self.gate is not None:
            yield model_pass.product(
                "projections", d, self.gate_width, bias=self.gate_width * self.gate.bias, shares_input=True
            )
            yield from model_pass.activation("projections", self.gate.activation, self.gate_width)
            # The product stores both of its inputs: the values and the factors.
            saved = 1 + self.gate_width / self.out_width
            yield model_pass.element_wise("element-wise", "projections", self.out_width, flops=1, read=2, saved=saved)
        yield model_pass.product("projections", self.out_width, d, bias=d * self.out_bias)

    def _inputs(
        self, d_model: int, model_pass: Pass, width: int, heads: int, norm_weights: int, *, shares_input: bool = False
    ) -> Iterator[Operation]:
        """Yield the projection to `width` features, their clipping, and the norm of the `heads` query and key heads
        among them."""
        bias = width * self.qkv_bias
        yield model_pass.product("projections", d_model, width, bias=bias, shares_input=shares_input)
        if self.clip_qkv is not None:
            yield model_pass.element_wise("element-wise", "projections", width, flops=2, saved=1)
        yield from model_pass.norm(self.qk_norm, heads * self.head_dim, norm_weights)

    def _inputs_of_cross(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations before the scores of cross-attention. Queries come from the sequence. Keys and values
        come from the source text, and only in the pass that reads it.

        All layers store the encoder's output together, unless each converts it to 16 bits.
        """
        d, query_width, norms = site.d_model, self.n_heads * self.head_dim, self._qk_norms()
        norms_of_keys = self._qk_norms_of(self.n_kv_heads)
        yield from self._inputs(d, model_pass, query_width, self.n_heads, norms - norms_of_keys)
        if model_pass.reads_source:
            of_source, kv_width = model_pass.of_source, self.qkv_width - query_width
            is_shared = of_source.bytes_each == of_source.stream_bytes
            yield from self._inputs(d, of_source, kv_width, self.n_kv_heads, norms_of_keys, shares_input=is_shared)

    def _norm_of_keys_is_first(self, site: Site) -> bool:
        """Return whether the projected keys have a norm, which a rotation does not precede."""
        is_rotated_first = isinstance(site.position, Rope) and site.position.order == "before_qk_norm"
        return not isinstance(self.qk_norm, NoNorm) and not is_rotated_first

    def _values_are_keys(self, site: Site) -> bool:
        is_changed = not isinstance(self.qk_norm, NoNorm) or self.v_norm is not None
        return self.keys_as_values and not is_changed and site.position.acts_on != "queries"

    def _is_stored_by_head(self, site: Site, model_pass: Pass) -> bool:
        """Return whether the queries are stored head by head in memory. A partial rotation causes this layout."""
        return site.position.acts_on == "queries" and site.position.rotated(self.head_dim) < self.head_dim

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """Return the cached keys and values: those of the tokens that later tokens may see. Cross-attention caches
        those of all `capacity` tokens of the source, and their number never changes."""
        slots = capacity if site.reads_source else keys_kept(self, capacity)
        return tuple(
            StateTensor(name, (self.n_kv_heads, slots, width), per_token=not site.reads_source)
            for name, width in (("k", self.head_dim), ("v", self.v_dim))
        )
