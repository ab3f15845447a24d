"""Pairs of a source and a target: the longest ones that fit into a window, and which pairs of a corpus are too long."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from archlab.config.objective import longest_side
from archlab.data.corpus import Corpus
from archlab.data.encoding import Encoded
from archlab.data.shards import LongestText, PairFacts
from archlab.data.template import PairFields
from archlab.errors import UserError

SIDES = ("source", "target")


def check_lengths(pairs: PairFacts, n_document_tokens: int, seq_len: int) -> None:
    """Raise UserError if a pair of a folder does not fit into windows of `seq_len` tokens."""
    limits = longest_texts(seq_len, n_document_tokens)
    texts = (pairs.longest_source, pairs.longest_target)
    for side, text, limit in zip(SIDES, texts, limits, strict=True):
        if text.tokens > limit:
            needed = seq_len + 2 * max(text.tokens - limit for text, limit in zip(texts, limits, strict=True))
            allowed = f"a length of {needed + needed % 2} or more (train.seq_len, train.eval_seq_len), or shorter pairs"
            hint = f"`archlab data --seq-len {seq_len} --skip-invalid` leaves out longer ones"
            raise UserError(f"{_too_long(text, side, seq_len, limits)}; allowed: {allowed}: {hint}")


def _too_long(text: LongestText, side: str, seq_len: int, limits: tuple[int, int]) -> str:
    holds = f"sources of up to {max(limits[0], 0)} and targets of up to {max(limits[1], 0)} tokens"
    return f"{text.where}: the {side} has {text.tokens} tokens; a window of {seq_len} tokens holds {holds}"


def longest_texts(seq_len: int, n_document_tokens: int) -> tuple[int, int]:
    """Return the largest numbers of tokens of a source and of a target in a window of `seq_len` tokens.

    The tokens that begin a document precede both. Those before the target separate it from the source. The first of
    them also ends the target.
    """
    half = longest_side(seq_len)
    return half - 2 * n_document_tokens, half - 1


@dataclass
class FittingPairs:
    """Filter that leaves out the pairs of a corpus that are too long, and remembers the longest source and target."""

    corpus: Corpus
    n_document_tokens: int
    seq_len: int | None
    """Length of the windows that every pair must fit into; None if pairs may have any length."""
    _longest: list[LongestText] = field(default_factory=lambda: [LongestText(where="", tokens=0) for _ in SIDES])

    def kept(self, encoded: Iterable[Encoded]) -> Iterator[Encoded]:
        """Yield the source and the target of each pair that fits. `encoded` yields sources and targets in turn.

        Raise UserError if a pair is too long and the corpus does not leave out invalid records.
        """
        texts = iter(encoded)
        for pair in zip(texts, texts, strict=True):
            if problem := self._problem(pair):
                if not self.corpus.skip_invalid:
                    raise UserError(f"{problem}; `archlab data --skip-invalid` leaves out such pairs")
                self.corpus.omissions.invalid += 1
                self.corpus.omissions.add(Path(pair[0].name.rpartition(":")[0]), *problem.split(": ", 1))
                continue
            for side, text in enumerate(pair):
                if len(text.ids) > self._longest[side].tokens:
                    self._longest[side] = LongestText(where=text.name, tokens=len(text.ids))
            yield from pair

    def _problem(self, pair: tuple[Encoded, Encoded]) -> str | None:
        for side, text in zip(SIDES, pair, strict=True):
            if not len(text.ids):
                return f"{text.name}: the tokenizer makes no tokens of the {side}"
        if self.seq_len is None:
            return None
        limits = longest_texts(self.seq_len, self.n_document_tokens)
        for side, text, limit in zip(SIDES, pair, limits, strict=True):
            if len(text.ids) > limit:
                return _too_long(LongestText(where=text.name, tokens=len(text.ids)), side, self.seq_len, limits)
        return None

    def facts(self) -> PairFacts:
        """Return the facts for the manifest, after all pairs have been read."""
        assert isinstance(self.corpus.template, PairFields)
        source, target = self._longest
        return PairFacts(fields=self.corpus.template.fields, longest_source=source, longest_target=target)
