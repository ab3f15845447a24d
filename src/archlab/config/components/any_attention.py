"""What every kind of attention has: query heads, which keys they see, how scores become weights, what pairs cost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from archlab.config.components.component import Attention, Site
from archlab.config.components.kernel_choice import RULES, KernelNeeds, kernel_for, writes_scores
from archlab.config.components.position import Shaw
from archlab.config.components.query_blocks import QueryBlocks, is_worth_cutting, query_blocks
from archlab.config.components.visibility import Visibility, is_plain_causal, keys_kept, visible_pairs
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, Heads, Positive

SOFTMAX_FLOPS = 5
"""Per score: scaled, less the largest, exp, summed, divided."""
SINK_WIDTH = 8
"""Dimensions by which a sink widens queries and keys (model/kernels.py)."""
CAP_FLOPS = 3
"""Per score: divided, tanh, multiplied."""

PRODUCTS_AND_MASK, CAPPING = 4, 6
"""Times that a score is read or written where no fused kernel has it: by the two products and the mask between them;
by a cap's three operations."""


class QueryHeads(Attention):
    """A number of query heads."""

    n_heads: Heads
    """Query heads."""


class AnyAttention(Visibility, QueryHeads):
    """What every kind of attention has: query heads, a rule which keys they see, and how a score becomes a weight."""

    scale: Derived[Positive] = DERIVED
    """Factor on q.k. null: 1 / sqrt(width of a query)."""
    softcap: Positive | None = None
    """Scores s become c tanh(s / c), before the mask (Gemma 2). null: not."""

    rotary_field: ClassVar[str]
    """The field that says how wide the part of a query is that RoPE may rotate."""

    @property
    def score_heads(self) -> int:
        """All query heads."""
        return self.n_heads

    @property
    def query_width(self) -> int:
        """Dimensions of one query and one key."""
        raise NotImplementedError

    @property
    def rotary_width(self) -> int:
        """Those of them that RoPE may rotate."""
        return getattr(self, self.rotary_field)

    def mixing(
        self,
        site: Site,
        this: Pass,
        key_width: int,
        value_width: int,
        made: int,
        sinks: int = 0,
    ) -> Iterator[Operation]:
        """Queries meet keys, scores become weights, values are mixed; in one kernel, which keeps no scores.

        One product with the key and one with the value per pair and head. Shaw's vectors ask for one more; it is
        computed with the vector of every distance, of which each pair takes one. `made`: numbers per token that keys
        and values of all heads have in this pass; where there is a cache they are read from it. A bias is read for
        every pair.
        """
        needs = self._needs_in_pass(site, this)
        heads, pairs = self.n_heads, this.texts * self._pairs(needs, this)
        distances = 0
        if isinstance(site.position, Shaw):
            of_every_distance = this.rows * (site.position.max_distance + 1)
            distances = min(pairs, of_every_distance) if this.counting == "visible" else of_every_distance
        learned = sinks + site.position.of_a_layer(heads, self.query_width)
        queries = this.rows * heads * (key_width + value_width)
        biases = heads * pairs if site.position.acts_on == "scores" else 0
        is_written = this.counting != "visible" and writes_scores(needs)
        yield Operation(
            "attention",
            "scores",
            flops=2 * heads * ((key_width + value_width) * pairs + self.query_width * distances),
            weights=learned * this.bytes_each,
            kept=self.kept_bytes(site, this),
            moved=(queries + this.rows * made + biases) * this.bytes_each,
            saved=self._saved(site, this, key_width, value_width, made, has_sinks=sinks > 0),
            times=2 if is_written else 1,
        )
        scores, capping = heads * pairs, CAP_FLOPS if self.softcap else 0
        if not is_written:
            yield Operation("softmax", "scores", flops=(SOFTMAX_FLOPS + capping) * scores)
            return
        # Written and read as products, by the mask, and by each operation of a cap.
        moved = (PRODUCTS_AND_MASK + (CAPPING if self.softcap else 0)) * scores * FLOAT32_BYTES
        made = scores * FLOAT32_BYTES
        yield Operation("element-wise", "scores", flops=capping * scores, moved=moved, made=made)
        # The weights; what a cap's tanh gives; dropout's factors, and what they leave of the weights.
        saved = (1 + needs.softcap + 2 * needs.dropout) * made
        yield Operation("softmax", "scores", flops=SOFTMAX_FLOPS * scores, moved=2 * made, saved=saved, made=made)

    def _lies_by_head(self, site: Site, this: Pass) -> bool:
        """Return whether queries lie in memory head by head, and not token by token."""
        return False

    def _saved(
        self,
        site: Site,
        this: Pass,
        key_width: int,
        value_width: int,
        made: int,
        *,
        has_sinks: bool,
    ) -> float:
        """Bytes that training keeps of queries, keys, values, masks and biases.

        What attention gives is the next product's input, and counted there. A CPU's fused kernel keeps it as well if
        it does not lie in memory as that product reads it.
        """
        needs, position = self._needs_in_pass(site, this), site.position
        heads, n_kv_heads = self.n_heads, made / (key_width + value_width)
        kept = 0.0 if position.is_shared else position.saved_for_scores(this, heads, self.query_width)
        mask = self._mask_pairs(needs, this)
        bytes_each = FLOAT32_BYTES if needs.bias else this.bytes_each
        given = 0
        if this.counting != "visible" and not needs.softcap:
            key_width += SINK_WIDTH * has_sinks
            is_copied = self._lies_by_head(site, this) or bool(self._blocks(needs, this)) or key_width != value_width
            is_copied |= bytes_each != this.bytes_each
            key_width = value_width = max(key_width, value_width)
            given = value_width * is_copied
        are_copied = has_sinks or writes_scores(needs)
        queries, keys = heads * this.rows, this.texts * self._keys_kept(needs, this, are_copied=are_copied)
        if this.counting != "visible" and (writes_scores(needs) or position.learns_scores):
            # Every head has keys and values of its own. No fused kernel of a CPU knows the gradient of a bias.
            weights = 0 if writes_scores(needs) else queries * this.context
            numbers = queries * key_width + heads * keys * (key_width + value_width) + weights
            return kept + numbers * FLOAT32_BYTES + mask
        numbers = queries * (key_width + given) + n_kv_heads * keys * (key_width + value_width)
        masks = heads * this.texts**position.reads_queries if needs.bias else 1
        in_float32 = queries + masks * mask
        return kept + numbers * bytes_each + in_float32 * FLOAT32_BYTES

    def _mask_pairs(self, needs: KernelNeeds, this: Pass) -> int:
        """Pairs of a query and a key in the masks that a kernel keeps: none if it is plain causal and has no bias."""
        if blocks := self._blocks(needs, this):
            return sum(b.all_pairs // (b.count if b.is_alike else 1) for b in blocks if not b.is_causal)
        return this.mask_pairs if needs.masked or needs.bias or needs.softcap else 0

    def _keys_kept(self, needs: KernelNeeds, this: Pass, *, are_copied: bool) -> int:
        """Keys of a text that a kernel keeps. Blocks of queries see parts of one tensor, or have copies of their keys,
        as they do beside shared ones."""
        blocks = self._blocks(needs, this)
        copies = [b for b in blocks if b.shared or are_copied]
        whole = 0 if blocks and len(copies) == len(blocks) else this.context
        return sum(b.all_keys for b in copies) + whole

    def _blocks(self, needs: KernelNeeds, this: Pass) -> Sequence[QueryBlocks]:
        """Blocks that a kernel cuts the queries of a text into; none if it does not."""
        return query_blocks(self, this.context) or () if needs.is_cut and not needs.bias else ()

    def kernel_needs(self, site: Site) -> KernelNeeds:
        """Return the requirements of a layer on its kernel, before a call."""
        return KernelNeeds(
            softcap=self.softcap is not None,
            dropout=site.dropout.attention > 0,
            bias=site.position.acts_on == "scores",
        )

    def _needs_in_pass(self, site: Site, this: Pass) -> KernelNeeds:
        """Return the requirements of a pass on a CPU's kernel. Where packed documents are cut is not known."""
        layer = self.kernel_needs(site)
        needs = replace(layer, on_cuda=False, is_cached=this.is_cached, dropout=layer.dropout and not this.is_cached)
        if this.counting == "visible" or this.held:
            return needs
        masked = this.counting == "packed" or not is_plain_causal(self, this.context)
        is_cut = masked and this.counting != "packed" and is_worth_cutting(self, this.context)
        return replace(needs, masked=masked, is_cut=is_cut)

    def rotating(self, site: Site, this: Pass, heads: int) -> Iterator[Operation]:
        """Of so many heads' queries and keys together, where they rotate."""
        if site.position.acts_on == "queries":
            width = heads * site.position.rotated(self.rotary_width)
            yield this.element_wise("element-wise", "positions", width, flops=3)

    def _pairs(self, needs: KernelNeeds, this: Pass) -> int:
        """Pairs of a query and a key, in one text.

        Computed: those of the kernel that a CPU takes (`kernel_choice.py`). Of packed documents they are all, because
        where these are cut is not known before. After a cache every query is counted with every key that is kept. What
        differs by machine is not counted, so that a budget does not depend on it: flex skips hidden tiles on a GPU; on
        a CPU sinks, and values of another width than queries, are padded.
        """
        length = this.context
        if this.counting == "visible":
            return visible_pairs(self, length) - (visible_pairs(self, this.held) if this.held else 0)
        if this.held:
            return this.tokens * keys_kept(self, length)
        whole = writes_scores(needs)
        match RULES[kernel_for("auto", needs)].pairs(needs):
            case "visible":
                return visible_pairs(self, length)
            case "blocks":
                return sum(b.all_pairs if whole else b.pairs for b in query_blocks(self, length) or [])
            case _:
                return length**2
