"""Byte-level BPE: nothing is lost, and every byte is counted."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from archlab.data import tokenizer as bpe
from archlab.data.spelling import not_spelled, spelling
from archlab.errors import UserError
from archlab.infer.text import PublishedCodec
from subwords import decode

TEXT = [Path(ast.__file__).read_text(), "The cat sat on the mat; it's 1234 o'clock.\r\n" * 20]
TOKENIZER = bpe.train(TEXT, 320)
SIZES = spelling(TOKENIZER).sizes


@given(st.text() | st.text(alphabet=" \n\r\tab'é☃<|>") | st.just("a<|endoftext|>b"))
def test_any_text_comes_back_and_every_byte_is_counted(text: str):
    [ids] = bpe.encode(TOKENIZER, [text])
    assert decode(TOKENIZER, ids) == text
    assert SIZES[ids].sum() == len(text.encode())
    assert 0 not in ids


def test_every_byte_has_a_token_and_the_end_of_text_is_id_0():
    assert bpe.vocab_size(TOKENIZER) == len(SIZES) == 320
    assert (SIZES[0], SIZES.dtype) == (0, np.int32)
    assert (SIZES == 1).sum() == 256
    assert SIZES[1:].min() == 1
    assert bpe.document_tokens(TOKENIZER) == (0,)


def test_it_learns_and_learns_the_same_again():
    assert len(bpe.encode(TOKENIZER, TEXT)[0]) < len(TEXT[0]) * 0.6
    assert bpe.train(iter(TEXT), 320).to_str() == TOKENIZER.to_str()


def test_a_long_run_is_learned_from_in_parts():
    """Encoded as a single word, 100,000 characters would take the trainer minutes."""
    learned = bpe.train(["a" * 100_000 + "\n" * 100_000], 300)
    assert 64 <= spelling(learned).sizes.max() <= bpe.LONGEST_WORD
    for run in ("a" * 5000, "\n" * 5000, " " * 5000 + "a"):
        [ids] = bpe.encode(learned, [run])
        assert decode(learned, ids) == run


def test_the_parts_change_nothing_if_no_word_is_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bpe, "LONGEST_WORD", 10**9)
    assert bpe.train(TEXT, 320).to_str() == TOKENIZER.to_str()


def test_saved_and_loaded_it_encodes_the_same(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_str())
    loaded = bpe.load(tmp_path / "tokenizer.json")
    texts = [*TEXT, "a<|endoftext|>b"]
    for a, b in zip(bpe.encode(TOKENIZER, texts), bpe.encode(loaded, texts), strict=True):
        np.testing.assert_array_equal(a, b)


def refusal(tmp_path: Path, change: dict) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(TOKENIZER.to_str()) | change))
    with pytest.raises(UserError, match=r"tokenizer\.json") as error:
        bpe.load(path)
    return str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a"}},
        {"model": json.loads(TOKENIZER.to_str())["model"] | {"continuing_subword_prefix": "é"}},
    ],
    ids=str,
)
def test_a_panic_of_the_library_is_a_message(change: dict, tmp_path: Path):
    """A panic derives from BaseException. Two occur while the file is read, and two with the first text."""
    assert "not a tokenizer.json: " in refusal(tmp_path, change)


def test_a_folder_means_the_tokenizer_in_it(tmp_path: Path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json; copy the model authors' file"):
        bpe.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_str())
    assert bpe.load(tmp_path).to_str() == bpe.load(tmp_path / "tokenizer.json").to_str()
    with pytest.raises(UserError, match="nowhere: No such file"):
        bpe.load(tmp_path / "nowhere")


def test_tokenizers_whose_bytes_are_unknown_are_named_and_those_without_special_tokens_refused(tmp_path: Path):
    whole = json.loads(TOKENIZER.to_str())

    def reason(**changes: object) -> str | None:
        return not_spelled(Tokenizer.from_str(json.dumps(whole | changes)))

    assert reason() is None
    assert reason(pre_tokenizer={"type": "Whitespace"}) == (
        "its decoder is byte-level, but its pre_tokenizer is not byte-level"
    )
    assert reason(decoder=None) == "its decoder (None) is neither byte-level nor SentencePiece's"
    vocab = {t: i for t, i in whole["model"]["vocab"].items() if t != bpe.END_OF_TEXT}
    model = whole["model"] | {"vocab": vocab}
    assert "has no special token; add one, because a special token must precede each document" in refusal(
        tmp_path, {"model": model, "added_tokens": []}
    )
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "words.json").write_text(words.to_str())
    with pytest.raises(UserError, match=r"words\.json has no special token"):
        bpe.load(tmp_path / "words.json")
    (tmp_path / "words.json").write_text("{}")
    with pytest.raises(UserError, match=r"words\.json: not a tokenizer\.json"):
        bpe.load(tmp_path / "words.json")


def test_special_tokens_count_nothing_and_added_words_count_their_bytes():
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.add_tokens(["☃☃"])
    tokenizer.add_special_tokens(["<|pad|>"])
    counts = spelling(tokenizer).sizes
    assert counts[tokenizer.token_to_id("☃☃")] == 6
    assert counts[tokenizer.token_to_id("<|pad|>")] == 0


def normalizing() -> str:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer.to_str()


def test_a_tokenizer_that_changes_the_text_is_recorded_when_it_does(tmp_path: Path):
    from archlab.data.prepare import prepare

    (tmp_path / "nfc.json").write_text(normalizing())
    (tmp_path / "plain.txt").write_text("plain text\n" * 50)
    (tmp_path / "decomposed.txt").write_text("cafe\u0301\n" * 50)
    made = prepare([str(tmp_path / "plain.txt")], tmp_path / "a", tokenizer=tmp_path / "nfc.json", held_out=0.1)
    assert made.manifest.vocab_size == 320
    assert made.manifest.inexact is None
    made = prepare([str(tmp_path / "decomposed.txt")], tmp_path / "b", tokenizer=tmp_path / "nfc.json", held_out=0.1)
    assert made.manifest.inexact is not None
    assert made.manifest.inexact.startswith("decomposed.txt: the tokenizer changes its text ('cafe\\u0301")


def test_a_pattern_that_backtracks_is_reported(tmp_path: Path):
    """The library panics, and a panic is not an Exception."""
    parts = json.loads(TOKENIZER.to_str())
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [slow, parts["pre_tokenizer"]["pretokenizers"][-1]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    (tokenizer, special), text = bpe.read(tmp_path / "tokenizer.json"), "a" * 40 + "b"
    codec = PublishedCodec(tokenizer, special)
    for encode in (lambda: bpe.encode(tokenizer, [text]), lambda: codec.encode(text)):
        with pytest.raises(UserError, match=r"the tokenizer cannot encode the text: .*retry-limit"):
            encode()


def test_a_token_with_a_huge_number_is_refused(tmp_path: Path):
    """The table of bytes per token would have as many rows as the largest id."""
    parts = json.loads(TOKENIZER.to_str())
    parts["model"]["vocab"][list(parts["model"]["vocab"])[-1]] = 4_000_000_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    for read in (bpe.read, bpe.load):
        with pytest.raises(UserError, match="a token has the id 4,000,000,000; allowed: below 10,000,000"):
            read(tmp_path / "tokenizer.json")
