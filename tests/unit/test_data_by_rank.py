"""tiktoken is used only if it gives the same tokens as the tokenizers library for every text."""

import ast
import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from archlab.data import tokenizer as bpe
from archlab.data.encoding import SAME_WORDS, by_rank
from archlab.data.spelling import bytes_of_name

SOURCE = Path(ast.__file__).read_text()
TOKENIZER = bpe.train([SOURCE], 600)
LETTER = bytes_of_name  # name for readability


def test_the_byte_alphabet_of_these_tests_is_plain_ascii():
    assert LETTER("abc1") == b"abc1"


def made(merges: list[tuple[str, str]], words: str = bpe.WORDS) -> Tokenizer:
    """Return a tokenizer of 256 bytes with these merges, in this order."""
    vocab = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.add_special_tokens([bpe.END_OF_TEXT])
    tokenizer.encode_special_tokens = True
    return tokenizer


def assert_same(tokenizer: Tokenizer, texts: list[str]) -> None:
    fast = by_rank(tokenizer)
    assert fast is not None
    for text, a, b in zip(texts, fast.encode(texts), bpe.encode(tokenizer, texts), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=repr(text[:80]))


@pytest.mark.parametrize("words", SAME_WORDS)
@pytest.mark.slow
def test_characters_of_unicode_are_the_same_part_of_a_word(words: str):
    """Bytes merge with a letter, digit, sign or blank before them, and with a line end after them. The tokens therefore
    show the borders of words."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    blank, newline = (pre_tokenizers.ByteLevel(False).pre_tokenize_str(c)[0][0] for c in " \n")
    merges = [(left, right) for left in ("a", "1", "!", blank) for right in alphabet]
    merges += [(left, newline) for left in alphabet if left not in ("a", "1", "!", blank)]
    tokenizer = made(merges, words)
    # The first and last character of each run of one category, and every seventh in between.
    every = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 97))]
    kinds = [unicodedata.category(c) for c in every]
    ends = {n for n, (one, other) in enumerate(pairwise(kinds)) if one != other}
    characters = [c for n, c in enumerate(every) if n % 7 == 0 or n in ends or n - 1 in ends]
    texts = ["".join(f"a{c}b 1{c}2!{c} {c} a\n{c}\n'{c}a" for c in characters[i::64]) for i in range(64)]
    assert_same(tokenizer, texts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab c1\n", min_size=1), min_size=1, max_size=20),
    st.lists(st.text("ab c1\n"), max_size=20),
    st.integers(258, 300),
)
def test_what_is_learned_encodes_the_same(learned: list[str], texts: list[str], vocab_size: int):
    assert_same(bpe.train(learned, vocab_size), texts)


@given(st.text() | st.text(alphabet=" \n\r\tab'é☃<|>") | st.just("a<|endoftext|>b"))
@pytest.mark.slow
def test_any_text_encodes_the_same(text: str):
    assert_same(TOKENIZER, [text])


@pytest.mark.slow
def test_a_million_blanks_encode_the_same():
    assert_same(TOKENIZER, [SOURCE + " " * 1_500_000])


def test_gpt2s_own_file_is_taken():
    like_gpt2 = made([("a", "b"), ("ab", "c")])
    like_gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert_same(like_gpt2, ["abc 'll ab  abc\n\n12 345", SOURCE])


def test_ids_that_do_not_follow_the_merges_are_left_to_the_library():
    """tiktoken would merge b and c first, because their token has the lower id."""
    parts = json.loads(made([("b", "c"), ("a", "b")]).to_str())
    parts["model"]["merges"].reverse()
    other = Tokenizer.from_str(json.dumps(parts))
    assert by_rank(other) is None
    assert [other.id_to_token(i) for i in bpe.encode(other, ["abc"])[0]] == ["ab", "c"]


def test_a_token_that_is_never_whole_is_left_to_the_library():
    """(ab, c) never merges, because b and c merge earlier. tiktoken would still use abc, as (a, bc)."""
    tokenizer = made([("b", "c"), ("a", "b"), ("ab", "c")])
    assert by_rank(tokenizer) is None
    assert [tokenizer.id_to_token(i) for i in bpe.encode(tokenizer, ["abc"])[0]] == ["a", "bc"]


def test_what_else_changes_tokens_is_left_to_the_library():
    def changed(**parts: object) -> Tokenizer:
        tokenizer = made([("a", "b")])
        for name, value in parts.items():
            setattr(tokenizer, name, value)
        return tokenizer

    assert by_rank(changed()) is not None
    assert by_rank(changed(normalizer=normalizers.NFC())) is None
    assert by_rank(changed(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))) is None
    assert by_rank(made([("a", "b")], words=r"\w+|\W+")) is None
    with_word = made([("a", "b")])
    with_word.add_tokens([AddedToken("abba")])
    assert by_rank(with_word) is None
    dropping = json.loads(made([("a", "b")]).to_str())
    dropping["model"]["dropout"] = 0.5
    assert by_rank(Tokenizer.from_str(json.dumps(dropping))) is None
