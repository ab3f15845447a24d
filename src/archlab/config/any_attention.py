"""What every kind of attention has: query heads, which keys they see, how scores become weights, what pairs cost."""

from typing import ClassVar

from archlab.config.base import Heads, Positive
from archlab.config.component import Component, Counting, Site
from archlab.config.position import BIASED, Shaw
from archlab.config.query_blocks import is_worth_cutting, query_blocks
from archlab.config.visibility import Visibility, is_plain_causal, visible_pairs


class QueryHeads(Component):
    """A number of query heads."""

    n_heads: Heads
    """Query heads."""


class AnyAttention(Visibility, QueryHeads):
    """What every kind of attention has: query heads, a rule which keys they see, and how a score becomes a weight."""

    scale: Positive | None = None
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

    def _scores(self, value_width: int, site: Site, seq_len: int, counting: Counting) -> float:
        """FLOPs: one product with the key and one with the value (with Shaw's vectors one more) per pair and head."""
        key_products = 2 if isinstance(site.position, Shaw) else 1
        per_pair = 2 * self.n_heads * (key_products * self.query_width + value_width)
        return per_pair * self._pairs(site, seq_len, counting)

    def _pairs(self, site: Site, seq_len: int, counting: Counting) -> int:
        """Pairs of a query and a key.

        Computed: the fused kernel skips what a plain causal mask hides (but for the edges of its tiles). Where a window
        or blocks hide enough, a text is cut into blocks of queries, and their pairs are counted. Otherwise, and with a
        bias, every query is counted with every key. So is it with packed documents, for where they are cut is not known
        before. What differs by machine is not counted, so that a budget does not depend on it: flex skips hidden tiles
        on a GPU; on a CPU sinks, and values of another width than queries, are padded.
        """
        if counting == "visible":
            return visible_pairs(self, seq_len)
        if counting == "packed" or site.position.kind in BIASED:
            return seq_len**2
        skips = self.softcap is None and not site.dropout.attention
        if is_plain_causal(self, seq_len):
            return visible_pairs(self, seq_len) if skips else seq_len**2
        if not is_worth_cutting(self, seq_len):
            return seq_len**2
        return sum(b.pairs if skips else b.all_pairs for b in query_blocks(self, seq_len) or [])


class AnyResolved(AnyAttention):
    """What every kind of attention has once derived values are filled in."""

    scale: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
