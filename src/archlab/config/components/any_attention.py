"""Features that all kinds of attention share: query heads, visible keys, conversion of scores to attention weights, and
costs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from archlab.config.components.component import Attention, MatrixShape, Site
from archlab.config.components.kernel_choice import RULES, KernelNeeds, kernel_for, writes_scores
from archlab.config.components.query_blocks import QueryBlocks, is_worth_cutting, query_blocks
from archlab.config.components.visibility import Visibility, hidden_keys, keys_kept, visible_pairs
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Positive

SOFTMAX_FLOPS = 5
"""FLOPs per score of the softmax: scale, subtract the maximum, exponentiate, sum, divide."""
SINK_WIDTH = 8
"""Number of dimensions that a sink adds to queries and keys (model/kernels.py)."""
CAP_FLOPS = 3
"""FLOPs per score of the soft cap: divide, tanh, multiply."""

PRODUCTS_AND_MASK, CAPPING = 4, 6
"""Number of times that each score is read or written if the kernel is not fused. PRODUCTS_AND_MASK counts the accesses
of the two matrix products and the mask, and CAPPING those of the three operations of the soft cap."""


class QueryHeads(Attention):
    """Base class of components with query heads."""

    n_heads: Heads
    """Number of query heads."""


class AnyAttention(Visibility, QueryHeads):
    """Base class of all kinds of attention. Its fields set the query heads, the visible keys, and how scores become
    attention weights."""

    scale: Derived[Positive] = DERIVED
    """Factor on the product of a query and a key. null: 1 / sqrt(width of a query)."""
    softcap: Positive | None = None
    """Soft limit c on the scores: each score s becomes c tanh(s / c) before the mask (Gemma 2). null: no limit."""

    rotary_field: ClassVar[str]
    """Name of the field that sets how many dimensions of each query RoPE may rotate."""

    @property
    def score_heads(self) -> int:
        return self.n_heads

    @property
    def query_width(self) -> int:
        """Width of one query, which is also the width of one key."""
        raise NotImplementedError

    @property
    def rotary_width(self) -> int:
        return getattr(self, self.rotary_field)

    def mixing(
        self,
        site: Site,
        model_pass: Pass,
        key_width: int,
        value_width: int,
        kv_width: int,
        sinks: int = 0,
    ) -> Iterator[Operation]:
        """Yield the query-key products, the softmax, and the products of attention weights and values. A fused kernel
        does not store the scores.

        For each query-key pair, each head computes one product with the key and one with the value. With Shaw's or
        Transformer-XL's position encoding, each query is also multiplied by the vectors of all distances, although a
        pair uses only one of the results. A bias is read for every pair.

        `kv_width` is the number of elements per token in the keys and values of all heads. With a cache, keys and
        values are read from the cache.
        """
        needs = self._needs_in_pass(site, model_pass)
        heads, pairs = self.n_heads, model_pass.texts * self._pairs(site, needs, model_pass)
        distances = model_pass.rows * site.position.distances(self._n_distances(model_pass))
        if model_pass.counting == "visible":
            distances = min(pairs, distances)
        width = self.query_width
        if site.position.projection_of_a_layer(1, 1, 1):
            yield self._projecting_distances(site, model_pass)
            width = site.d_model if self._projects_queries(model_pass) else width
        learned = sinks + site.position.of_a_layer(heads, self.query_width)
        queries = model_pass.rows * heads * (key_width + value_width)
        new_keys = model_pass.of_source.rows if site.reads_source else model_pass.rows
        biases = heads * pairs if site.position.acts_on == "scores" else 0
        is_written = model_pass.counting != "visible" and writes_scores(needs)
        yield Operation(
            "attention",
            "scores",
            flops=2 * heads * ((key_width + value_width) * pairs + width * distances),
            weights=learned * model_pass.bytes_each,
            kept=self.kept_bytes(site, model_pass),
            moved=(queries + new_keys * kv_width + biases) * model_pass.bytes_each,
            saved=self._saved(site, model_pass, key_width, value_width, kv_width, has_sinks=sinks > 0),
            times=2 if is_written else 1,
        )
        scores, capping = heads * pairs, CAP_FLOPS if self.softcap else 0
        if not is_written:
            yield Operation("softmax", "scores", flops=(SOFTMAX_FLOPS + capping) * scores)
            return
        # The scores are written and read by the products, the mask and each operation of the soft cap.
        moved = (PRODUCTS_AND_MASK + (CAPPING if self.softcap else 0)) * scores * FLOAT32_BYTES
        score_bytes = scores * FLOAT32_BYTES
        yield Operation("element-wise", "scores", flops=capping * scores, moved=moved, made=score_bytes)
        # Stored: the attention weights, the tanh of the soft cap, the dropout mask, and the weights after dropout.
        saved = (1 + needs.softcap + 2 * needs.dropout) * score_bytes
        yield Operation(
            "softmax", "scores", flops=SOFTMAX_FLOPS * scores, moved=2 * score_bytes, saved=saved, made=score_bytes
        )

    def _n_distances(self, model_pass: Pass) -> int:
        """Return the number of different distances between a query and the keys of the pass."""
        is_bounded = model_pass.n_cached or model_pass.counting == "visible"
        return keys_kept(self, model_pass.context) if is_bounded else model_pass.context

    def _projects_queries(self, model_pass: Pass) -> bool:
        """Return whether Transformer-XL's projection is applied to the queries, as in a decoding step, instead of to
        the vectors of all distances."""
        return model_pass.is_cached and model_pass.tokens == 1

    def _projecting_distances(self, site: Site, model_pass: Pass) -> Operation:
        """Return the product with Transformer-XL's projection. All sequences share the vectors of the distances."""
        rows = model_pass.rows if self._projects_queries(model_pass) else self._n_distances(model_pass)
        return model_pass.product("positions", site.d_model, self.n_heads * self.query_width, rows=rows)

    def _positions(self, site: Site) -> int:
        """Return the number of parameters of the layer's own position encoding."""
        biases = site.position.of_a_layer(self.n_heads, self.query_width)
        return biases + site.position.projection_of_a_layer(site.d_model, self.n_heads, self.query_width)

    def other_matrices(self, site: Site) -> Counter[MatrixShape]:
        projection = site.position.projection_of_a_layer(site.d_model, self.n_heads, self.query_width)
        shapes = super().other_matrices(site)
        if projection:
            shapes[MatrixShape(projection // site.d_model, site.d_model)] += 1
        return shapes

    def _is_stored_by_head(self, site: Site, model_pass: Pass) -> bool:
        return False

    def _values_are_keys(self, site: Site) -> bool:
        """Return whether values and keys are one tensor."""
        return False

    def _saved(
        self,
        site: Site,
        model_pass: Pass,
        key_width: int,
        value_width: int,
        kv_width: int,
        *,
        has_sinks: bool,
    ) -> float:
        """Return the bytes of queries, keys, values, masks and biases that training stores for the backward pass.

        The output of attention is not included, because it is counted as the input of the output projection. On a CPU,
        a fused kernel stores a second copy of the output if the projection reads it in a different memory layout.
        """
        needs, position = self._needs_in_pass(site, model_pass), site.position
        heads, n_kv_heads = self.n_heads, kv_width / (key_width + value_width)
        kept = 0.0 if position.is_shared else position.saved_for_scores(model_pass, heads, self.query_width)
        mask = self._mask_pairs(site, needs, model_pass)
        bytes_each = FLOAT32_BYTES if needs.bias else model_pass.bytes_each
        output_width = 0
        if model_pass.counting != "visible" and not needs.softcap:
            key_width += SINK_WIDTH * has_sinks
            is_copied = (
                self._is_stored_by_head(site, model_pass)
                or bool(self._blocks(needs, model_pass))
                or key_width != value_width
            )
            is_copied |= bytes_each != model_pass.bytes_each
            key_width = value_width = max(key_width, value_width)
            output_width = value_width * is_copied
        are_copied = has_sinks or writes_scores(needs)
        queries, keys = (
            heads * model_pass.rows,
            model_pass.texts * self._keys_kept(site, needs, model_pass, are_copied=are_copied),
        )
        if model_pass.counting != "visible" and (writes_scores(needs) or position.learns_scores):
            # Every head has its own keys and values. No fused kernel of a CPU computes the gradient of a bias.
            weights = 0 if writes_scores(needs) else queries * site.n_keys(model_pass)
            numbers = queries * key_width + heads * keys * (key_width + value_width) + weights
            return kept + numbers * FLOAT32_BYTES + mask
        numbers = queries * (key_width + output_width) + n_kv_heads * keys * (key_width + value_width)
        if self._values_are_keys(site) and not are_copied:
            numbers -= n_kv_heads * keys * value_width
        masks = heads * model_pass.texts**position.reads_queries if needs.bias else 1
        in_float32 = queries + masks * mask
        return kept + numbers * bytes_each + in_float32 * FLOAT32_BYTES

    def _mask_pairs(self, site: Site, needs: KernelNeeds, model_pass: Pass) -> int:
        """Return the number of query-key pairs in the masks that a kernel stores. It is 0 for a plain causal mask
        without bias."""
        if blocks := self._blocks(needs, model_pass):
            return sum(b.all_pairs // (b.count if b.is_alike else 1) for b in blocks if not b.is_causal)
        if site.reads_source:  # every query sees every key, so no mask is stored
            return 0
        return model_pass.mask_pairs if needs.mask == "other" or needs.bias or needs.softcap else 0

    def _keys_kept(self, site: Site, needs: KernelNeeds, model_pass: Pass, *, are_copied: bool) -> int:
        """Return the number of keys per sequence that a kernel stores for the backward pass. Usually, all blocks of
        queries share one key tensor. Blocks that also see shared keys each store a copy of all the keys that they
        see."""
        blocks = self._blocks(needs, model_pass)
        copies = [b for b in blocks if b.shared or are_copied]
        whole = 0 if blocks and len(copies) == len(blocks) else site.n_keys(model_pass)
        return sum(b.all_keys for b in copies) + whole

    def _blocks(self, needs: KernelNeeds, model_pass: Pass) -> Sequence[QueryBlocks]:
        return query_blocks(self, model_pass.context) or () if needs.is_cut and not needs.bias else ()

    def kernel_needs(self, site: Site) -> KernelNeeds:
        """Return what the layer requires of its kernel, as far as the config determines it."""
        return KernelNeeds(
            softcap=self.softcap is not None,
            dropout=site.dropout.attention > 0,
            bias=site.position.acts_on == "scores",
        )

    def _needs_in_pass(self, site: Site, model_pass: Pass) -> KernelNeeds:
        """Return what the layer requires of a CPU kernel in this pass. The boundaries of packed documents are unknown
        here."""
        layer = self.kernel_needs(site)
        needs = replace(layer, on_cuda=False, dropout=layer.dropout and not model_pass.is_cached)
        if site.reads_source:
            return replace(needs, mask="none")
        if model_pass.counting == "visible" or model_pass.n_cached:
            return needs
        if model_pass.counting == "packed":
            return replace(needs, mask="other")
        mask = hidden_keys(self, model_pass.context)
        return replace(needs, mask=mask, is_cut=mask == "other" and is_worth_cutting(self, model_pass.context))

    def rotating(self, site: Site, model_pass: Pass, heads: int) -> Iterator[Operation]:
        """Yield the rotation of queries and keys if the position encoding rotates them. `heads` is the number of query
        heads plus the number of key heads."""
        if site.position.acts_on == "queries":
            width = heads * site.position.rotated(self.rotary_width)
            yield model_pass.element_wise("element-wise", "positions", width, flops=3)

    def _pairs(self, site: Site, needs: KernelNeeds, model_pass: Pass) -> int:
        """Return the number of query-key pairs in one sequence that are computed. In cross-attention, every query is
        compared with the whole source.

        `computed` counts the pairs of the kernel that `auto` chooses on a CPU (`kernel_choice.py`). `packed` counts all
        pairs, because the boundaries of documents are unknown here. With a cache, every new query is counted with every
        cached key.

        Differences between machines are ignored, so that a budget does not depend on the machine. For example, flex
        skips hidden tiles on a GPU. On a CPU, sinks are padded, and so are values whose width differs from that of the
        queries.
        """
        if site.reads_source:
            return model_pass.tokens * model_pass.source
        length = model_pass.context
        if model_pass.counting == "visible":
            return visible_pairs(self, length) - (
                visible_pairs(self, model_pass.n_cached) if model_pass.n_cached else 0
            )
        if model_pass.n_cached:
            return model_pass.tokens * keys_kept(self, length)
        whole = writes_scores(needs)
        match RULES[kernel_for("auto", needs)].pairs(needs):
            case "visible":
                return visible_pairs(self, length)
            case "blocks":
                return sum(b.all_pairs if whole else b.pairs for b in query_blocks(self, length) or [])
            case _:
                return length**2
