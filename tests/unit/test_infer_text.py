"""Text in pieces: no split characters and no part of a stop string, for any tokens."""

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from archlab.cli import app
from archlab.config.check import validate
from archlab.config.io import build_config
from archlab.config.objective import Mixture, Prefix, SpanCorruption
from archlab.data import tokenizer as bpe
from archlab.data.reserved import mode_tokens, reserve_tokens
from archlab.data.spelling import spelling
from archlab.errors import UserError
from archlab.hf.special_tokens import SpecialTokens
from archlab.infer import text as codec
from archlab.infer import text as text_module
from archlab.infer.beams import beam_search
from archlab.infer.generate import generate
from archlab.infer.sampling import Sampling
from archlab.infer.session import Session
from archlab.infer.stop_strings import StopStrings
from archlab.infer.text import PublishedCodec, RunCodec, best_text, stream_text
from archlab.model.decoder import Decoder
from subwords import decode

TEXT = "日本語のテキスト 👩‍🚀🎉 naïve café — Ωmega\n\nthe cat sat on the mat. " * 8
TOKENIZER = bpe.train([TEXT], 300)
(END,) = bpe.document_tokens(TOKENIZER)
BYTES = spelling(TOKENIZER).tokens


def tiny(*overrides: str) -> Decoder:
    sizes = {"vocab_size": 300, "d_model": 16, "n_layers": 1, "max_seq_len": 32, "attention": {"n_heads": 2}}
    return Decoder(build_config({"model": sizes}, overrides).model)


def writing(tokens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every session write these tokens, so that a test can check their text."""

    def write(_: Session, n: int, *__: Any, **___: Any) -> Iterator[torch.Tensor]:
        ended = itertools.accumulate(tokens, lambda over, t: over or t == END, initial=False)
        kept = [t for t, over in zip(tokens, ended, strict=False) if not over]
        return iter(torch.tensor(kept[:n])[:, None])

    monkeypatch.setattr(text_module.Session, "write", write)


def pieces(tokens: list[int], stop: str | list[str] = ()) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        writing(tokens, patch)
        return list(stream_text(tiny(), RunCodec(TOKENIZER), "", 1000, stop=stop))


def test_tokens_that_the_tokenizer_does_not_have_are_never_chosen() -> None:
    """The text is that of a model whose vocabulary ends with the tokenizer's."""
    larger = tiny("model.vocab_size=900", "model.head.tied=false")
    exact = tiny(f"model.vocab_size={TOKENIZER.get_vocab_size()}", "model.head.tied=false")
    for row, whole in zip(exact.parameters(), larger.parameters(), strict=True):
        row.data = whole.data[: len(row)].clone()
    prompt = torch.tensor([[END]])
    assert generate(larger, prompt, 20).max() >= TOKENIZER.get_vocab_size()
    for sampling in (Sampling(), Sampling(1.0, seed=1), Sampling(0.9, top_p=0.8, repetition_penalty=1.3, seed=2)):
        texts = ["".join(stream_text(model, RunCodec(TOKENIZER), "the", 20, sampling)) for model in (larger, exact)]
        assert texts[0] == texts[1] != ""
    codec = RunCodec(TOKENIZER)
    found = [best_text(model, codec, "the", 12, alpha=9) for model in (larger, exact)]
    assert found[0] == found[1] != ""
    unknown = list(range(TOKENIZER.get_vocab_size(), 900))
    assert torch.equal(generate(larger, prompt, 20, excluded=unknown), generate(exact, prompt, 20))


def test_a_source_text_has_the_form_of_training() -> None:
    """With hidden spans, the token that begins a document ends the text, and does not begin it (Raffel 2020)."""
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    reserve_tokens(tokenizer, ("mode:R", "mode:S"))
    parts = {
        "spans": {"objective": {"kind": "span_corruption"}, "mode": "R"},
        "prefix": {"objective": {"kind": "prefix"}, "mode": "S", "share": 3},
    }
    mixture = validate(Mixture, {"kind": "mixture", "parts": parts}, "mixture")
    objectives = {"spans": SpanCorruption(), "prefix": Prefix(), "mixture": mixture}
    codecs = {name: RunCodec(tokenizer, objective=objective) for name, objective in objectives.items()}
    end = codecs["spans"].special.before[0]
    (a,), modes = bpe.encode(tokenizer, ["a"])[0].tolist(), mode_tokens(tokenizer)
    assert codecs["spans"].source("a") == [a, end]
    assert codecs["prefix"].source("a") == codecs["mixture"].source("a") == [end, a]
    assert codecs["mixture"].source("[R]a") == [modes["R"], a, end]
    assert codecs["mixture"].source("[S]a") == [modes["S"], end, a]
    assert [codec.reads_source for codec in codecs.values()] == [True, False, True]


@pytest.mark.parametrize("write", [generate, beam_search])
@pytest.mark.parametrize(
    ("excluded", "message"),
    [([300], "token 300: not in the model's vocabulary"), (range(300), "excluded: all tokens of the vocabulary")],
)
def test_exclusions_that_cannot_be_are_refused(
    write: Callable[..., object], excluded: Sequence[int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write(tiny(), torch.tensor([[END]]), 4, excluded=excluded)


def by_bytes(text: str) -> list[int]:
    """Return a tokenizer with one token per byte, so that every character beyond ASCII has several tokens."""
    single = {BYTES[i]: i for i in range(300)}
    return [single[bytes([b])] for b in text.encode()]


def test_the_tokenizer_splits_characters_as_these_tests_need() -> None:
    ids = bpe.encode(TOKENIZER, ["🎉 Ω 語 ☃"])[0].tolist()
    assert b"".join(BYTES[i] for i in ids) == "🎉 Ω 語 ☃".encode()
    parts = [BYTES[i] for i in bpe.encode(TOKENIZER, ["☃"])[0]]
    assert len(parts) > 1


def test_bytes_of_a_token_are_those_that_count() -> None:
    assert [len(BYTES[i]) for i in range(300)] == spelling(TOKENIZER).sizes.tolist()
    assert {BYTES[i] for i in range(300)} >= {bytes([b]) for b in range(256)}
    assert BYTES[END] == b""


def test_characters_come_whole() -> None:
    found = pieces(by_bytes("é語🎉a"))
    assert found == ["é", "語", "🎉", "a"]


@settings(deadline=None)
@given(st.text(alphabet="ab é☃🎉👩‍🚀\n日"))
@pytest.mark.slow
def test_any_text_comes_back(text: str) -> None:
    assert "".join(pieces(by_bytes(text))) == text
    assert "".join(pieces(bpe.encode(TOKENIZER, [text])[0].tolist())) == text


@settings(deadline=None)
@given(st.lists(st.integers(0, 299)))
@pytest.mark.slow
def test_any_tokens_give_the_text_of_decode_except_for_an_unfinished_end(tokens: list[int]) -> None:
    kept = tokens[: tokens.index(END)] if END in tokens else tokens
    whole = decode(TOKENIZER, kept)
    data = b"".join(BYTES[t] for t in kept)
    unfinished = next((n for n in (1, 2, 3) if data[-n:].decode(errors="ignore") == "" and _may_go_on(data[-n:])), 0)
    assert "".join(pieces(tokens)) == (whole.removesuffix("\ufffd") if unfinished else whole)


def _may_go_on(start: bytes) -> bool:
    """Whether these bytes are the beginning of a character."""
    tails = itertools.chain.from_iterable(itertools.product((0x80, 0x90, 0xA0, 0xBF), repeat=n) for n in (1, 2, 3))
    for tail in tails:
        try:
            if len((start + bytes(tail)).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_an_unfinished_last_character_is_dropped(missing: int) -> None:
    assert "".join(pieces(by_bytes("so 🎉")[:-missing])) == "so "
    assert "".join(pieces([*by_bytes("so 🎉")[:-missing], END, *by_bytes("x")])) == "so "


def test_bytes_that_are_not_a_character_are_replaced() -> None:
    assert "".join(pieces([*by_bytes("🎉")[:2], *by_bytes("ab")])) == "\ufffdab"
    assert "".join(pieces([by_bytes("☃")[1]])) == "\ufffd"
    single = {BYTES[i]: i for i in range(300)}
    assert pieces([single[b"\xed"], single[b"\xa1"]]) == ["\ufffd\ufffd"]  # how a surrogate would begin


def test_it_ends_at_the_end_of_text() -> None:
    assert pieces([*by_bytes("ab"), END, *by_bytes("cd")]) == ["a", "b"]


# --- published tokenizers ------------------------------------------------------------------------------------


def byte_fallback() -> Tokenizer:
    """Return a tokenizer like Llama 2's: ▁ for spaces, and byte tokens for characters without a token."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ba", "日", "\ufffd"]
    bpe_model = models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(bpe_model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def word_by_word() -> Tokenizer:
    """Return a tokenizer with pieces of words and without byte tokens."""
    scores = [("<unk>", 0.0), *((name, -1.0) for name in ("▁", "▁a", "a", "b", "ba", "é", "☃", "\n"))]
    tokenizer = Tokenizer(models.Unigram(scores, 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return tokenizer


def byte_level_in_a_sequence() -> Tokenizer:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    return tokenizer


PUBLISHED = {
    "byte-level": TOKENIZER,
    "in a sequence": byte_level_in_a_sequence(),
    "byte fallback": byte_fallback(),
    "words": word_by_word(),
}


def streamed(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> list[str]:
    return list(map(PublishedCodec(tokenizer, SpecialTokens()).decoder(prompt), new))


@pytest.mark.parametrize("name", PUBLISHED)
@settings(deadline=None)
@given(data=st.data(), text=st.text(alphabet="ab é☃🎉日\n\ufffd", max_size=12))
def test_a_published_tokenizer_streams_what_it_decodes(name: str, data: st.DataObject, text: str) -> None:
    """The prompt may end within a character. The rest of the character comes with the first new token."""
    tokenizer = PUBLISHED[name]
    ids = tokenizer.encode(text).ids
    cut = data.draw(st.integers(0, len(ids)))
    prompt, new = "".join(streamed(tokenizer, [], ids[:cut])), "".join(streamed(tokenizer, ids[:cut], ids[cut:]))
    assert prompt + new == tokenizer.decode(ids)


@pytest.mark.parametrize("name", PUBLISHED)
@settings(deadline=None)
@given(data=st.data())
def test_no_tokens_break_a_stream(name: str, data: st.DataObject) -> None:
    tokenizer = PUBLISHED[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 3)))
    cut = data.draw(st.integers(0, len(ids)))
    found = streamed(tokenizer, ids[:cut], ids[cut:])
    assert len("".join(found)) <= sum(len(tokenizer.id_to_token(i) or "") for i in ids)
    if name == "byte-level":
        spelled = spelling(tokenizer).tokens
        raw = b"".join(spelled.get(i, b"") for i in ids)
        both = "".join(streamed(tokenizer, [], ids))
        assert raw.decode(errors="replace").rstrip("\ufffd") == both.rstrip("\ufffd")


@pytest.mark.parametrize(
    ("prompt", "new", "expected"),
    [
        ("hi", [0x0A, 0xF0, "b"], ["\n", "", "\ufffdb"]),
        ("a\n", [0xF0, "b"], ["", "\ufffdb"]),
        ("🎉", [*"🎉".encode(), 0xF0, "b"], ["", "", "", "🎉", "", "\ufffdb"]),
        ("a\ufffd", ["a", "b"], ["a", "b"]),
        ("a", ["\ufffd", "b", *"\ufffd".encode()], ["\ufffd", "b", "", "", "\ufffd"]),
        ("a", ["▁a", 0x0A, "▁a"], [" a", "\n", " a"]),
        ("", ["▁a", "<s>", "▁a"], ["a", "", " a"]),
    ],
)
def test_bytes_and_words_in_one_stream(prompt: str, new: list[int | str], expected: list[str]) -> None:
    tokenizer = PUBLISHED["byte fallback"]
    ids = [tokenizer.token_to_id(f"<0x{n:02X}>" if isinstance(n, int) else n) for n in new]
    assert streamed(tokenizer, tokenizer.encode(prompt).ids if prompt else [], ids) == expected


# --- stop strings ------------------------------------------------------------------------------------------


def reference(text: str, stops: list[str]) -> str:
    """Return the text before the stop string that is complete first, or the longest of several such strings."""
    for end in range(len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@settings(max_examples=400, deadline=None)
@given(
    st.text(alphabet="ab\n", max_size=30),
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=3),
    st.integers(0, 2**32),
)
@pytest.mark.slow
def test_stop_strings_however_the_text_is_cut(text: str, stops: list[str], seed: int) -> None:
    cut, until, shown = random.Random(seed), StopStrings(stops), ""
    expected, rest = reference(text, stops), text
    while rest and not until.found:
        n = cut.randint(0, 4)
        shown, rest = shown + until.certain(rest[:n]), rest[n:]
        assert expected.startswith(shown)
        # Text is held back only if a stop string may begin with it.
        so_far = text[: len(text) - len(rest)]
        if not until.found:
            assert any(s.startswith(so_far[len(shown) :]) for s in [*stops, ""])
    assert until.found == (expected != text or any(text.endswith(s) for s in stops))
    assert (shown if until.found else shown + until.rest()) == expected


def test_a_stop_string_over_several_tokens_is_never_shown_in_part() -> None:
    assert pieces(by_bytes("one\n\ntwo"), ["\n\n"]) == ["o", "n", "e"]
    assert pieces(by_bytes("one\ntwo"), ["\n\n"]) == ["o", "n", "e", "\nt", "w", "o"]
    assert "".join(pieces(by_bytes("one\n"), ["\n\n"])) == "one\n"
    assert "".join(pieces(by_bytes("aaab!"), "aab")) == "a"
    assert "".join(pieces(by_bytes("x🎉y"), ["🎉"])) == "x"
    assert pieces(by_bytes("stop"), "stop") == []


def test_a_token_that_goes_beyond_the_stop_string_is_cut() -> None:
    tokens = bpe.encode(TOKENIZER, ["the cat sat on"])[0].tolist()
    assert len(tokens) < len("the cat sat on")
    assert "".join(pieces(tokens, "t s")) == "the ca"


def test_nothing_is_written_after_a_stop_string(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    writing(by_bytes("ab.cd"), monkeypatch)
    add = codec._Utf8Decoder.add
    monkeypatch.setattr(codec._Utf8Decoder, "add", lambda self, raw: seen.append(raw) or add(self, raw))
    assert "".join(stream_text(tiny(), RunCodec(TOKENIZER), "", 99, stop=".")) == "ab"
    assert seen == [b"a", b"b", b"."]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="stop: ''"):
        stream_text(tiny(), RunCodec(TOKENIZER), "x", stop=["a", ""])


# --- with a model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "the cat 日本"])
@pytest.mark.slow
def test_the_text_is_that_of_the_tokens(prompt: str) -> None:
    model, shown = tiny(), []
    ids = torch.tensor([[END, *bpe.encode(TOKENIZER, [prompt])[0].tolist()]])
    for seed in range(10):
        sampling = Sampling(temperature=1.0, seed=seed)
        tokens = [int(t) for t in Session(model, ids, capacity=60).write(40, sampling, END)]
        data = b"".join(BYTES[t] for t in tokens)
        shown.append("".join(stream_text(model, RunCodec(TOKENIZER), prompt, 40, sampling)))
        assert data.decode(errors="replace").rstrip("\ufffd") == shown[-1].rstrip("\ufffd")
    assert len(set(shown)) == 10
    assert any("\ufffd" in text for text in shown)


def test_a_prompt_beyond_learned_positions_is_refused_before_anything_is_shown() -> None:
    model = tiny("model.position.kind=learned")
    with pytest.raises(UserError, match=r"prompt: 32 tokens; allowed: up to 31.*max_seq_len = 32"):
        stream_text(model, RunCodec(TOKENIZER), "\x01" * 32)
    list(stream_text(model, RunCodec(TOKENIZER), "\x01" * 31))


def test_a_text_beyond_the_length_of_the_model_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    list(stream_text(tiny(), RunCodec(TOKENIZER), "\x01" * 28, 4))
    assert capsys.readouterr().err == ""
    list(stream_text(tiny(), RunCodec(TOKENIZER), "\x01" * 100, 4))
    note = "the model is built for at most 32 tokens (model.max_seq_len), but the text may have 104"
    assert capsys.readouterr().err == f"note: {note}\n"


def test_writing_ends_at_the_end_of_learned_positions() -> None:
    model = tiny("model.position.kind=learned")
    sampling = Sampling(temperature=1.0, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        write = Session.write
        patch.setattr(Session, "write", lambda s, n, *a, **k: asked.append(n) or write(s, n, *a, **k))
        list(stream_text(model, RunCodec(TOKENIZER), "\x01" * 9, 500, sampling))
    assert asked == [32 - 10 + 1]
    greedy = "".join(stream_text(model, RunCodec(TOKENIZER), "\x01" * 28, 500))
    assert best_text(model, codec.RunCodec(TOKENIZER), "\x01" * 28, 500, beams=1) == greedy


# --- the command line --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from archlab.config.core.yaml_text import to_yaml
    from archlab.training.saving import save_checkpoint

    folder = tmp_path_factory.mktemp("run")
    model = tiny("model.position.kind=learned", "model.max_seq_len=64")
    raw = {"model": model.config.model_dump(mode="json"), "train": {"batch_tokens": 64}}
    (folder / "config.yaml").write_text(to_yaml(raw))
    (folder / "tokenizer.json").write_text(TOKENIZER.to_str())
    save_checkpoint(folder / "checkpoints", 1, model, None)
    return folder


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert app.main(["generate", *arguments]) == 0
    return capsys.readouterr().out


def test_generate_prints_the_prompt_and_what_follows(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "--max-new-tokens",
        "30",
        "--temperature",
        "1",
        "--top-k",
        "50",
        "--top-p",
        "0.95",
        "--min-p",
        "0.01",
    ]
    settings += ["--repetition-penalty", "1.1", "--seed", "3"]
    text = output(capsys, str(run_folder), "--prompt", "日本", *settings)
    sampling = Sampling(1.0, 50, 0.95, 0.01, 1.1, 3)
    model = loaded(run_folder)
    assert text == "日本" + "".join(stream_text(model, RunCodec(TOKENIZER), "日本", 30, sampling)) + "\n"
    assert output(capsys, str(run_folder), "--prompt", "日本", *settings) == text
    whole = output(capsys, str(run_folder), *settings)
    stop = next(c for c in whole[5:] if c.isprintable())
    cut = whole.index(stop)
    assert output(capsys, str(run_folder), *settings, "--stop", "never there", "--stop", stop) == whole[:cut] + "\n"


def test_text_may_begin_like_an_option(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = output(
        capsys, str(run_folder), "--prompt", "- one", "--stop", "---", "--max-new-tokens", "2", "--seed", "1"
    )
    assert found.startswith("- one")


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_character_shows_another(run_folder: Path) -> None:
    command = [sys.executable, "-m", "archlab", "generate", str(run_folder), "--prompt", "日a", "--max-new-tokens", "1"]
    found = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert found.stdout.startswith(b"?a")


def loaded(folder: Path) -> Decoder:
    from archlab.infer.load import from_pretrained

    return from_pretrained(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "\x01" * 200], "prompt: 200 tokens; allowed: up to 63"),
        (["--top-p", "2"], "top_p: 2.0; allowed: above 0, up to 1"),
        (["--temperature", "-1"], "temperature: -1.0; allowed: 0 (greedy) or more"),
        (["--stop", ""], "stop: ''; allowed: strings of at least one character"),
        (["--seed", "-1"], "seed: -1; allowed"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(
    run_folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert app.main(["generate", str(run_folder), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert np.char.count(err.strip(), "\n") == 0
