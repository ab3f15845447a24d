"""tiktoken in place of the tokenizers library, several times as fast, where both give every text the same tokens.

A tokenizer.json says which pairs merge, and in which order; tiktoken merges the two neighbours that make the token of
the lowest id. That is the same where ids follow the order of the merges and every token, encoded alone, comes out
whole. For a border between two tokens that is there after some merges was there before each of them. What lies
between two such borders has therefore been merged as if it stood alone, so that two neighbours that together spell a
token are the very two of which that token is merged.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tiktoken import Encoding
from tokenizers import Tokenizer, models

from archlab.data import tokenizer as bpe
from archlab.data.spelling import bytes_of_name

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = bpe.WORDS.replace("{1,2}", "{1,3}")
SAME_WORDS = (bpe.WORDS, _LLAMA_3, _GPT2)
"""Patterns of words that both libraries read alike: tested for all characters up to U+1FFFF, and one in 97 beyond."""

_MANY = 200_000
_BLANKS = re.compile(rf"\s{{{_MANY}}}")
"""Blanks in a row that are left to the library: tiktoken's regular expressions give up at about a million."""


class ByRank:
    """Encodes with tiktoken."""

    def __init__(self, tokenizer: Tokenizer, pattern: str, ranks: dict[bytes, int]) -> None:
        self._tokenizer = tokenizer
        self._encoding = Encoding("archlab", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, uint32, without special tokens."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> np.ndarray:
        if len(text) >= _MANY and _BLANKS.search(text):
            return bpe.encode(self._tokenizer, [text])[0]
        return np.array(self._encoding.encode_ordinary(text), dtype=np.uint32)  # faster than its encode_to_numpy


def by_rank(tokenizer: Tokenizer) -> ByRank | None:
    """None where the tokens could be others than the library's."""
    parts = json.loads(tokenizer.to_str())
    pattern, names = _pattern(parts["pre_tokenizer"]), _plain_names(parts)
    if pattern is None or parts["normalizer"] is not None or names is None:
        return None
    return ByRank(tokenizer, pattern, {bytes_of_name(name): i for name, i in names.items()})


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """Of words, where there is one that both libraries read alike, and nothing else is done before merging."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if pattern in SAME_WORDS:
            return pattern
    return None


def _plain_names(parts: dict[str, Any]) -> dict[str, int] | None:
    """Token -> id, without special tokens, where an id tells when a token is merged."""
    model, added = parts["model"], parts["added_tokens"]
    if model["type"] != "BPE" or model.get("dropout") or not all(token["special"] for token in added):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    special = {token["content"] for token in added}
    names = {name: i for name, i in model["vocab"].items() if name not in special}
    merges = [tuple(pair) for pair in model["merges"]]
    made = [names.get(left + right, -1) for left, right in merges]
    if any(a > b for a, b in pairwise(made)):
        return None
    plain = models.BPE(vocab=model["vocab"], merges=merges)  # which takes no word whole, as `ignore_merges` would
    whole = (len(found := plain.tokenize(name)) == 1 and found[0].id == i for name, i in names.items())
    return names if all(whole) else None
