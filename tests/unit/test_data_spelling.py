"""Bytes of text for each token, compared with the text that the tokenizers library decodes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

import subwords
from archlab.data import split
from archlab.data import tokenizer as bpe
from archlab.data.encoding import Encoded, by_rank, encode_pieces
from archlab.data.prepare import prepare
from archlab.data.spelling import bytes_of_name, spelling
from archlab.data.split import Piece
from archlab.data.text_data import TextData, TextSource
from archlab.data.training_data import Windows
from archlab.errors import UserError
from subwords import KINDS, TEXTS, llama_2, t5

MADE = {kind: bpe.from_text(make().to_str()) for kind, make in KINDS.items()}


def encode(tokenizer: Tokenizer, *texts: str) -> list[Encoded]:
    """Encode each text as a document."""
    return list(encode_pieces(tokenizer, [Piece(0, f"{n}.txt", text, True) for n, text in enumerate(texts)], 1, 1))


def decode(kind: str, ids: np.ndarray) -> str:
    """Decode with the library. Its byte-level decoder keeps the space that was put before the text."""
    text = subwords.decode(MADE[kind], ids)
    return text.removeprefix(" ") if kind == "byte_level" else text


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(text=st.text(min_size=1) | st.text(alphabet=" \n\tab'é☃<|>▁", min_size=1) | st.sampled_from(TEXTS))
@pytest.mark.slow
def test_a_text_is_taken_if_it_comes_back_from_its_tokens(kind: str, text: str) -> None:
    tokenizer, spelled = MADE[kind], spelling(MADE[kind])
    [ids] = bpe.encode(tokenizer, [text])
    [found] = encode(tokenizer, text)
    if found.inexact:
        assert decode(kind, ids) != text
        return
    assert decode(kind, found.ids) == text
    assert found.text_bytes == len(text.encode()) == spelled.sizes[found.ids].sum() - len(spelled.prefix)
    if text[0] != " ":
        np.testing.assert_array_equal(found.ids, ids)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "t5"])
def test_texts_of_all_sorts_are_taken(kind: str) -> None:
    assert [found.text_bytes for found in encode(MADE[kind], *TEXTS)] == [len(text.encode()) for text in TEXTS]


def inexact(tokenizer: Tokenizer, *texts: str) -> list[str | None]:
    return [document.inexact for document in encode(tokenizer, *texts)]


def test_a_text_like_the_name_of_a_byte_is_inexact_if_it_becomes_the_byte() -> None:
    assert inexact(MADE["llama_2"], "a <0x0A>") == [None]
    (reason,) = inexact(MADE["unigram_with_bytes"], "a <0x0A>")
    assert reason is not None
    assert "('a <0x0A>' became 'a \\n')" in reason


def test_special_tokens_in_a_text_are_letters() -> None:
    tokenizer = MADE["llama_2"]
    [found] = encode(tokenizer, "a <s>b</s>")
    assert not {tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")} & set(found.ids.tolist())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "t5"])
def test_a_document_in_pieces_has_no_space_at_their_borders(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that puts a space before a text must not put one before a later piece of a document."""
    monkeypatch.setattr(split, "PIECE", 40)
    texts = [f"{n} and\n  so on\n" * 30 for n in range(8)]
    for n, text in enumerate(texts):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{n}.txt").write_text(text)
    (tmp_path / "tokenizer.json").write_text(MADE[kind].to_str())
    data = prepare([str(tmp_path / "texts")], tmp_path / "data", tokenizer=tmp_path / "tokenizer.json", held_out=0.3)
    ids = np.concatenate([tokens.read(0, len(tokens)) for tokens in (data.train, data.held_out)])
    starts = np.flatnonzero(ids == data.manifest.end_of_text)
    found = [decode(kind, part[1:]) for part in np.split(ids, starts[1:])]
    assert sorted(found) == sorted(texts)


@pytest.mark.parametrize(
    ("normalizer", "text", "before", "after"),
    [
        (normalizers.Lowercase(), "The cat", "'The cat'", "'the cat'"),
        (normalizers.Replace("q", "z"), "a quick fox", "'a quick fox'", "'a zuick fox'"),
        (normalizers.NFKC(), "\uf900", r"'\uf900'", r"'\u8c48'"),
        (normalizers.NFC(), "cafe\u0301", r"'cafe\u0301'", r"'caf\xe9'"),
        (normalizers.Strip(), " a", "' a'", "'a'"),
    ],
)
def test_a_changed_text_is_inexact_and_shown(
    normalizer: normalizers.Normalizer, text: str, before: str, after: str
) -> None:
    """Four of the five changes keep the number of bytes or characters."""
    tokenizer = bpe.train(TEXTS, 300)
    tokenizer.normalizer = normalizer
    tokenizer = bpe.from_text(tokenizer.to_str())
    plain, reason = inexact(tokenizer, "plain text", text)
    assert plain is None
    assert reason == f"1.txt: the tokenizer changes its text ({before} became {after})"
    assert inexact(tokenizer, "plain text", "caf\u00e9".removesuffix("\u00e9"), "x") == [None] * 3


def test_a_byte_without_a_token_makes_only_texts_with_this_byte_inexact() -> None:
    """SmolLM2's byte-level tokenizer has no token for 21 of the 256 bytes, and drops these bytes."""
    whole = json.loads(bpe.train(TEXTS, 300).to_str())
    vocab = {name: i for name, i in whole["model"]["vocab"].items() if bytes_of_name(name) != b"\x04"}
    tokenizer = bpe.from_text(json.dumps(whole | {"model": whole["model"] | {"vocab": vocab}}))
    assert by_rank(tokenizer) is None
    without, reason = inexact(tokenizer, "plain text", "a\x04b")
    assert without is None
    assert reason == r"1.txt: the tokenizer changes its text ('a\x04b' became 'ab')"


@pytest.mark.parametrize("kind", ["llama_5", "unigram_with_bytes", "byte_level"])
def test_a_document_that_begins_with_a_space_keeps_it(kind: str) -> None:
    """The library encodes "a" and " a" to the same tokens, so the tokens do not tell the number of bytes."""
    tokenizer = MADE[kind]
    alike = bpe.encode(tokenizer, ["a", " a"])
    assert alike[0].tolist() == alike[1].tolist()
    found = encode(tokenizer, "a", " a", "  a", "b")
    assert [decode(kind, document.ids) for document in found] == ["a", " a", "  a", "b"]


def test_a_space_is_kept_as_by_the_tokenizer_that_keeps_all() -> None:
    """Llama 2's own tokenizer puts a space before every text, as SentencePiece does."""
    texts = [" a", "  the fox", " \n"]
    ours, theirs = encode(MADE["llama_5"], *texts), bpe.encode(MADE["llama_2"], texts)
    assert [document.ids.tolist() for document in ours] == [ids.tolist() for ids in theirs]


def test_words_with_single_spaces_are_kept_by_a_tokenizer_that_cuts_at_blanks() -> None:
    """T5's own tokenizer puts a space before every word."""
    tokenizer = t5()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    assert [document.text_bytes for document in encode(tokenizer, "the fox", "x")] == [7, 1]
    (reason,) = inexact(tokenizer, "the  fox")
    assert reason is not None
    assert "('the  fox' became 'the fox')" in reason


def test_the_token_that_begins_documents_is_refused_in_text_even_if_it_is_not_special(tmp_path: Path) -> None:
    """A text can then contain this token. Such a text is refused."""
    tokenizer = bpe.train(TEXTS, 300)
    state = (
        tokenizer.to_str().replace('"special":true', '"special":false').replace('"special": true', '"special": false')
    )
    (tmp_path / "tokenizer.json").write_text(state)
    (tmp_path / "plain.jsonl").write_text('{"text": "plain text"}\n' * 60)
    data = prepare(
        [str(tmp_path / "plain.jsonl")], tmp_path / "plain", tokenizer=tmp_path / "tokenizer.json", held_out=0.3
    )
    assert data.manifest.folds[0].documents > 1
    held_out = TextData([TextSource("text", data)]).held_out(len(data.held_out) - 1, None)
    assert held_out.bytes is not None
    assert held_out.bytes.sum() == data.manifest.folds[0].bytes
    (tmp_path / "a.txt").write_text("plain text\n" * 20 + "a <|endoftext|> b\n" + "plain text\n" * 20)
    with pytest.raises(UserError, match=r"a\.txt contains the token <\|endoftext\|>"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", tokenizer=tmp_path / "tokenizer.json", held_out=0.1)


def test_the_added_space_is_scored_but_stands_for_no_byte() -> None:
    tokenizer = MADE["llama_2"]
    spelled, (end,) = spelling(tokenizer), bpe.document_tokens(tokenizer)
    texts = ["\n\n", "the cat", "x"]
    ids = [end, *(i for text in texts for i in (*bpe.encode(tokenizer, [text])[0].tolist(), end))]
    held_out = Windows.of_text(np.array([ids]), spelled.sizes, (end,), len(spelled.prefix), continues=np.array([False]))
    assert held_out.bytes is not None
    assert held_out.bytes.sum() == sum(len(text) for text in texts)
    assert held_out.scored is not None
    assert held_out.scored.sum() == len(ids) - 1 - len(texts)
    assert tokenizer.id_to_token(ids[1]) == "▁"
    assert (held_out.scored[0, 0], held_out.bytes[0, 0]) == (True, 0)


def test_the_added_space_follows_the_last_of_several_tokens_before_a_document() -> None:
    tokenizer = MADE["llama_2"]
    spelled, before = spelling(tokenizer), [tokenizer.token_to_id("<unk>"), *bpe.document_tokens(tokenizer)]
    assert len(set(before)) == 2
    texts = ["\n\n", "the cat", "x"]
    ids = [i for text in texts for i in (*before, *bpe.encode(tokenizer, [text])[0].tolist())]
    held_out = Windows.of_text(np.array([ids]), spelled.sizes, before, len(spelled.prefix), continues=np.array([False]))
    assert held_out.bytes is not None
    assert held_out.bytes.sum() == sum(len(text) for text in texts)


def test_a_decoder_that_nobody_can_count_makes_every_text_inexact() -> None:
    tokenizer = llama_2()
    for decoder in (decoders.WordPiece(), decoders.BPEDecoder(), decoders.CTC(), decoders.Replace("▁▁", " ")):
        tokenizer.decoder = decoder
        kind = type(decoder).__name__
        expected = f"its decoder ({kind}) is neither byte-level nor SentencePiece's"
        assert inexact(tokenizer, "the fox", "x") == [expected] * 2
