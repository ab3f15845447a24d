"""Pairs of texts: reading, splitting, windows and scores, compared with the records themselves."""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archlab.cli import app
from archlab.data import tokenizer as bpe
from archlab.data.objectives import Batches
from archlab.data.open import about_data, open_training_data
from archlab.data.pair_data import PairData, divided_by_width
from archlab.data.prepare import prepare
from archlab.data.shards import DataFolder
from archlab.data.template import PairFields
from archlab.data.text_data import TextSource
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.training.callback import Callback
from archlab.training.train import train
from subwords import decode, llama_2
from tiny import config

FIELDS = PairFields(("en", "de"))
WORDS = ("get", "set", "naïve", "value", "item", "list", "open", "file")
SEQ_LEN = 128
VOCAB = 257  # every byte is a token
SEQ2SEQ = ("train.objective.kind=seq2seq", "model.attention.visibility=prefix")


pytestmark = pytest.mark.usefixtures("own_cache")


def some_pairs(n: int) -> list[tuple[str, str]]:
    """Return identifiers in snake_case and CamelCase, of very different lengths. No two sources are equal."""
    draw = random.Random(0)
    chosen = [draw.choices(WORDS, k=draw.choice((1, 1, 2, 2, 3, 8))) for _ in range(n)]
    return [("_".join([*words, str(i)]), "".join(map(str.title, words)) + str(i)) for i, words in enumerate(chosen)]


def write_jsonl(path: Path, pairs: Iterable[tuple[str, str]]) -> Path:
    lines = (json.dumps({"id": i, "en": source, "de": target}) for i, (source, target) in enumerate(pairs))
    path.write_text("\n".join(lines))
    return path


def made(folder: Path, n: int = 300, **options: object) -> DataFolder:
    file = write_jsonl(folder / "a.jsonl", some_pairs(n))
    return prepare([str(file)], folder / "data", vocab_size=VOCAB, held_out=0.2, template=FIELDS, **options)  # pyright: ignore[reportArgumentType]


def opened(folder: DataFolder) -> PairData:
    return PairData((TextSource("pairs", folder),))


def texts_of(data: DataFolder, split: str) -> list[tuple[str, str]]:
    """Decode the documents of a split, and return them two by two."""
    tokens = getattr(data, split)
    documents = bytes(0) if not len(tokens) else tokens.read(0, len(tokens))
    starts = np.flatnonzero(documents == data.manifest.end_of_text)
    texts = [decode(data.tokenizer, part) for part in np.split(documents, starts[1:])]
    return list(zip(texts[::2], texts[1::2], strict=True))


def expected_window(data: DataFolder, pair: tuple[str, str], width: int) -> tuple[list[int], int, int]:
    """Return the tokens, `given` and `lengths` of the window of a pair, from its texts."""
    source, target = (ids.tolist() for ids in bpe.encode(data.tokenizer, pair))
    end = data.manifest.end_of_text
    tokens = [end, *source, end, *target, end]
    return tokens + [end] * (width + 1 - len(tokens)), len(source) + 2, len(tokens)


def sources_of(data: DataFolder, windows: Windows) -> list[str]:
    assert windows.source_lengths is not None
    rows = zip(windows.tokens, windows.source_lengths, strict=True)
    return [decode(data.tokenizer, tokens[: int(n)]) for tokens, n in rows]


# --- reading and splitting ----------------------------------------------------------------------------------------


def test_each_pair_is_whole_and_in_one_split(tmp_path: Path) -> None:
    data = made(tmp_path)
    training, held_out = texts_of(data, "train"), texts_of(data, "held_out")
    assert sorted(training + held_out) == sorted(some_pairs(300))
    assert 40 < len(held_out) < 80
    assert all(part.documents % 2 == 0 for part in data.manifest.parts)
    assert sum(part.bytes for part in data.manifest.parts) == sum(len("".join(p).encode()) for p in some_pairs(300))
    assert "300 pairs of en and de" in str(data)
    for fold in range(len(data.manifest.folds)):
        other = DataFolder.open(data.path, fold)
        assert sorted(texts_of(other, "train") + texts_of(other, "held_out")) == sorted(some_pairs(300))


def written_tsv(kind: str, folder: Path, pairs: list[tuple[str, str]]) -> tuple[Path, tuple[str, str]]:
    rows = [f"{i}\t{target}\t{source}" for i, (source, target) in enumerate(pairs)]
    lines, fields = ([*rows, ""], ("3", "2")) if kind == "numbers" else (["id\tde\ten", *rows], ("en", "de"))
    content = ("\r\n" if kind == "crlf" else "\n").join(lines).encode("utf-8-sig" if kind == "mark" else "utf-8")
    file = folder / ("a.tsv.gz" if kind == "packed" else "a.tsv")
    file.write_bytes(gzip.compress(content) if kind == "packed" else content)
    return file, fields


@pytest.mark.parametrize("kind", ["names", "numbers", "crlf", "mark", "packed"])
def test_columns_of_a_tsv_file_are_read_by_name_or_number(kind: str, tmp_path: Path) -> None:
    file, fields = written_tsv(kind, tmp_path, some_pairs(100))
    data = prepare([str(file)], tmp_path / "data", vocab_size=300, held_out=0.2, template=PairFields(fields))
    assert sorted(texts_of(data, "train") + texts_of(data, "held_out")) == sorted(some_pairs(100))


def test_the_standard_library_has_no_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "python-stdlib has no pairs; allowed: a .jsonl, .parquet, .arrow or .tsv file (data.path)"
    with pytest.raises(UserError, match=re.escape(message)):
        open_training_data(config("data.pairs=[en,de]").data, VOCAB)
    assert app.main(["data", "python-stdlib", "--pairs", "en,de", "--out", str(tmp_path / "out")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_tsv_file_without_pairs_is_still_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\ttwo\n" * 50)
    data = prepare([str(tmp_path / "a.tsv")], tmp_path / "data", vocab_size=300, held_out=0.2)
    assert data.manifest.pairs is None
    assert sum(part.bytes for part in data.manifest.parts) == 400


GOOD = '{"en": "a", "de": "b"}\n'


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.jsonl", GOOD + '{"en": "a", "dee": "b"}', "en,de", r"a\.jsonl, line 2: no field 'de'; did you mean dee\?"),
        ("a.jsonl", GOOD + '{"en": "", "de": "b"}', "en,de", r"a\.jsonl, line 2: 'en' is empty; expected text"),
        ("a.jsonl", GOOD + '{"en": "a", "de": " \\n"}', "en,de", r"a\.jsonl, line 2: 'de' is empty; expected text"),
        ("a.jsonl", GOOD + '{"en": "a", "de": null}', "en,de", r"a\.jsonl, line 2: 'de' is null; expected a string"),
        ("a.tsv", "en\tde\na\tb\nc\n", "en,de", r"a\.tsv, line 3: 1 column; expected 2, as in the first line"),
        ("a.tsv", "en\tde\na\tb\n\n", "en,de", r"a\.tsv, line 3: 1 column; expected 2"),
        ("a.tsv", "en\tde\na\t\n", "en,de", r"a\.tsv, line 2: 'de' is empty"),
        ("a.tsv", "en\tger\na\tb\n", "en,gr", r"a\.tsv, line 1: no column 'gr'; did you mean ger\?.* as in 1,2"),
        ("a.tsv", "en\tde\ten\n", "en,de", r"a\.tsv, line 1: the first line names 2 columns 'en'; allowed: one"),
        ("a.tsv", "a\tb\n", "1,3", r"a\.tsv, line 1: no column 3; found: columns 1 to 2"),
        ("a.tsv", "a\tb\n", "0,1", r"a\.tsv, line 1: no column 0; found: columns 1 to 2"),
        ("a.tsv", b"en\tde\n\xff\tb\n", "en,de", r"a\.tsv, line 2: not valid UTF-8"),
        ("a.txt", "en\tde\n", "en,de", r"a\.txt: not a file of pairs; expected \.jsonl, \.parquet, \.arrow or \.tsv"),
        (
            "a.jsonl",
            GOOD * 3,
            "en,de",
            r"too few pairs to hold out 5\.0% of the text in whole pairs; the longest of 3, a\.jsonl:1, has 33\.3% of the "
            r"text \(2 characters\); allowed: more",
        ),
        ("a.jsonl", GOOD, "en,2", r"en and 2; allowed: two names, or two numbers of the columns"),
        ("a.jsonl", GOOD, "en,en", r"'en' and 'en'; allowed: two different fields"),
        ("a.jsonl", GOOD, "en", r"--pairs en names 1 field; allowed: two with a comma between them"),
    ],
)
def test_wrong_pairs_are_refused_with_their_place(
    name: str, content: str | bytes, fields: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    out = tmp_path / "out"
    assert (
        app.main(["data", str(tmp_path / name), "--pairs", fields, "--out", str(out), "--vocab-size", str(VOCAB)]) == 2
    )
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error), error
    assert not out.exists()


def test_invalid_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [*some_pairs(100), ("", "x"), ("y", " "), ("z" * 70, "Z")])
    data = prepare(
        [str(file)],
        tmp_path / "data",
        vocab_size=VOCAB,
        held_out=0.2,
        template=FIELDS,
        skip_invalid=True,
        seq_len=SEQ_LEN,
    )
    assert sorted(texts_of(data, "train") + texts_of(data, "held_out")) == sorted(some_pairs(100))
    assert data.manifest.invalid == 3
    assert [line.partition(": ")[2] for line in data.manifest.left_out[-1:]] == [
        "the source has 70 tokens; a window of 128 tokens holds sources of up to 62 and targets of up to 63 tokens"
    ]
    assert data.manifest.left_out[-1].startswith("a.jsonl:103")


@pytest.mark.parametrize("lengths", [(30_000,), (6_000, 90_000), (10_000, 10_000, 400_000)])
def test_long_pairs_that_are_left_out_do_not_disturb_the_split(lengths: tuple[int, ...], tmp_path: Path) -> None:
    normal, long = some_pairs(400), [(f"{i}" * n, "x") for i, n in enumerate(lengths)]
    pairs = [*normal[:200], *long, *normal[200:]]
    file = write_jsonl(tmp_path / "a.jsonl", pairs)
    data = prepare(
        [str(file)],
        tmp_path / "data",
        vocab_size=VOCAB,
        held_out=0.2,
        template=FIELDS,
        skip_invalid=True,
        seq_len=SEQ_LEN,
    )
    assert data.manifest.invalid == len(long)
    assert sorted(texts_of(data, "train") + texts_of(data, "held_out")) == sorted(normal)
    size = sum(len(source) + len(target) for source, target in normal)
    assert all(0.5 * size / 5 < fold.bytes < 1.5 * size / 5 for fold in data.manifest.folds)
    whole = prepare([str(file)], tmp_path / "whole", vocab_size=VOCAB, held_out=0.2, template=FIELDS)
    assert sorted(texts_of(whole, "train") + texts_of(whole, "held_out")) == sorted(pairs)
    assert whole.manifest.rest.documents == 2 * len(long)


def test_folds_without_pairs_that_fit_are_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [*(("q" * 100, f"{i}" * 100) for i in range(20)), ("a", "b")])
    with pytest.raises(
        UserError, match=r"too few pairs remain .* \(20 invalid were left out\); allowed: more"
    ) as raised:
        prepare(
            [str(file)],
            tmp_path / "data",
            vocab_size=VOCAB,
            held_out=0.2,
            template=FIELDS,
            skip_invalid=True,
            seq_len=SEQ_LEN,
        )
    assert "a.jsonl:1: the source has 100 tokens" in str(raised.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("side", "longest"), [("source", 62), ("target", 63)])
def test_a_pair_fits_if_each_side_fits_into_half_a_window(side: str, longest: int, tmp_path: Path) -> None:
    for n in (longest, longest + 1):
        long = ("q" * n, "x") if side == "source" else ("x", "q" * n)
        folder = tmp_path / str(n)
        folder.mkdir()
        file = write_jsonl(folder / "a.jsonl", [*some_pairs(100), long])
        data = opened(prepare([str(file)], folder / "data", vocab_size=VOCAB, held_out=0.2, template=FIELDS))
        if n == longest:
            data.windows(0, 0, 2, SEQ_LEN)
            data.held_out(SEQ_LEN, None)
            continue
        message = rf"^a\.jsonl:101: the {side} has {n} tokens; a window of 128 tokens holds .* a length of 130 or more"
        with pytest.raises(UserError, match=message):
            data.windows(0, 0, 2, SEQ_LEN)
        with pytest.raises(UserError, match=message):
            data.held_out(SEQ_LEN, None)
        data.held_out(SEQ_LEN + 2, None)
        with pytest.raises(UserError, match=rf"^a\.jsonl:101: the {side} has {n} tokens"):
            prepare([str(file)], folder / "short", vocab_size=VOCAB, held_out=0.2, template=FIELDS, seq_len=SEQ_LEN)


def test_plain_text_keeps_its_key_and_pairs_have_another_one(tmp_path: Path) -> None:
    """The key of plain text was written down before archlab knew pairs."""
    lines = (json.dumps({"text": f"hello world {i} " * (i % 7 + 1)}) for i in range(300))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    plain = prepare([str(tmp_path / "a.jsonl")], tmp_path / "plain", vocab_size=300, held_out=0.2)
    assert plain.manifest.key == "7b2eeab19293609332db40be292310e8a8c947c421d6e2bdc1bea0c10119c78e"
    assert not {"pairs", "inexact"} & json.loads((tmp_path / "plain" / "manifest.json").read_text()).keys()
    pairs = made(tmp_path)
    assert len({pairs.manifest.key, prepare([str(tmp_path / "a.jsonl")], tmp_path / "b", vocab_size=300, held_out=0.2, template=FIELDS,
                                            seq_len=SEQ_LEN).manifest.key}) == 2  # fmt: skip


# --- windows ------------------------------------------------------------------------------------------------------


def test_windows_are_those_of_the_records_and_every_step_has_as_many_tokens(tmp_path: Path) -> None:
    data = made(tmp_path)
    pairs, source = dict(texts_of(data, "train")), opened(data)
    widths = Counter[int]()
    for step in range(100):
        windows = source.windows(3, step, 4, SEQ_LEN)
        assert windows.source_lengths is not None
        assert windows.lengths is not None
        assert windows.scored is not None
        width = windows.tokens.shape[1] - 1
        widths[width] += 1
        assert len(windows.tokens) * width == 4 * SEQ_LEN
        for row, text in enumerate(sources_of(data, windows)):
            tokens, n_given, length = expected_window(data, (text, pairs[text]), width)
            assert windows.tokens[row].tolist() == tokens
            assert (windows.source_lengths[row], windows.lengths[row]) == (n_given, length)
            assert windows.scored[row].tolist() == [n_given <= i < length for i in range(1, width + 1)]
    assert set(widths) == {SEQ_LEN, SEQ_LEN // 2, SEQ_LEN // 4}


def needed_width(data: DataFolder, pair: tuple[str, str]) -> int:
    source, target = (len(ids) for ids in bpe.encode(data.tokenizer, pair))
    longer = max(source + 2, target + 1)
    return next(width for width in (SEQ_LEN // 4, SEQ_LEN // 2, SEQ_LEN) if longer <= width // 2)


def test_each_epoch_reads_each_pair_once_in_another_order(tmp_path: Path) -> None:
    data = made(tmp_path)
    by_width: dict[int, set[str]] = {}
    for source, target in texts_of(data, "train"):
        by_width.setdefault(needed_width(data, (source, target)), set()).add(source)
    assert all(len(sources) >= SEQ_LEN // width * 2 for width, sources in by_width.items())
    seen: dict[tuple[int, int], list[str]] = {}
    n_steps = 3 * sum(len(sources) * width for width, sources in by_width.items()) // (2 * SEQ_LEN)
    steps = Counter[int]()
    for seed in (0, 1):
        pairs = opened(data)
        for step in range(n_steps):
            windows = pairs.windows(seed, step, 2, SEQ_LEN)
            width = windows.tokens.shape[1] - 1
            seen.setdefault((seed, width), []).extend(sources_of(data, windows))
            steps[width] += 1
    for width, sources in by_width.items():
        epochs = {
            (seed, n): seen[seed, width][n * len(sources) : (n + 1) * len(sources)] for seed in (0, 1) for n in (0, 1)
        }
        for epoch in epochs.values():
            assert Counter(epoch) == Counter(sources)
        assert len({tuple(epoch) for epoch in epochs.values()}) == 4
        share = len(sources) * width / sum(len(s) * w for w, s in by_width.items())
        assert steps[width] / 2 == pytest.approx(n_steps * share, abs=2)


def test_a_step_does_not_depend_on_the_steps_before(tmp_path: Path) -> None:
    data = made(tmp_path)
    alone = opened(data).windows(5, 17, 4, SEQ_LEN)
    pairs = opened(data)
    for step in (3, 90, 0, 16):
        pairs.windows(5, step, 4, SEQ_LEN)
    again = pairs.windows(5, 17, 4, SEQ_LEN)
    np.testing.assert_array_equal(alone.tokens, again.tokens)
    np.testing.assert_array_equal(alone.source_lengths, again.source_lengths)


@given(
    needed=st.lists(st.integers(2, 16).map(lambda half: 2 * half), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
)
def test_widths_hold_all_pairs_once_and_enough_for_a_step(needed: list[int], batch_size: int) -> None:
    widths = divided_by_width(np.array(needed), batch_size, 32)
    assert sorted(n for width in widths for n in width.pairs) == list(range(len(needed)))
    for width in widths:
        assert width.n_windows * width.n_tokens == batch_size * 32
        assert max(needed[n] for n in width.pairs) <= width.n_tokens
        assert len(width.pairs) >= min(width.n_windows, len(needed)) or len(widths) == 1
    ascending = [sorted(needed[n] for n in width.pairs) for width in reversed(widths)]
    assert [n for part in ascending for n in part] == sorted(needed)


def test_passes_are_those_of_the_steps(tmp_path: Path) -> None:
    """The widths depend on the batch size: few long pairs fill a narrow batch, but not a wide one."""
    data = made(tmp_path)
    for batch_size in (1, 8, 40):
        reads = Counter[str]()
        for step in range(1200 // batch_size):
            reads.update(sources_of(data, opened(data).windows(0, step, batch_size, SEQ_LEN)))
        mean = sum(reads.values()) / len(texts_of(data, "train"))
        assert opened(data).passes(1200 // batch_size, batch_size, SEQ_LEN)["pairs"] == pytest.approx(mean, rel=0.05)


def test_padding_is_the_part_of_the_windows_that_no_pair_fills(tmp_path: Path) -> None:
    data = made(tmp_path)
    used = total = 0
    for pair in texts_of(data, "train"):
        width = needed_width(data, pair)
        used += expected_window(data, pair, width)[2]
        total += width
    assert opened(data).padding(2, SEQ_LEN) == pytest.approx(1 - used / total)
    assert opened(data).passes(7, 2, SEQ_LEN)["pairs"] == pytest.approx(7 * 2 * SEQ_LEN / total)
    assert opened(data).padding(2, SEQ_LEN) < 0.6 < opened(data).padding(10**6, SEQ_LEN)


# --- held-out pairs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_held_out_pairs_are_spread_evenly_and_only_the_bytes_of_targets_count(kind: str, tmp_path: Path) -> None:
    file, tokenizer = write_jsonl(tmp_path / "a.jsonl", some_pairs(300)), None
    if kind == "sentencepiece":
        tokenizer = tmp_path / "tokenizer.json"
        tokenizer.write_text(llama_2().to_str())
    data = prepare(
        [str(file)],
        tmp_path / "data",
        vocab_size=None if tokenizer else VOCAB,
        tokenizer=tokenizer,
        held_out=0.2,
        template=FIELDS,
    )
    pairs = texts_of(data, "held_out")
    whole = opened(data).held_out(256, None)
    assert whole.bytes is not None
    assert whole.bytes.sum(1).tolist() == [len(target.encode()) for _, target in pairs]
    assert whole.scored is not None
    assert whole.lengths is not None
    assert whole.source_lengths is not None
    assert whole.scored.sum(1).tolist() == (whole.lengths - whole.source_lengths).tolist()
    assert not whole.bytes[~whole.scored].any()
    some = opened(data).held_out(256, 256 * 10 + 3)
    index = np.arange(10) * len(pairs) // 10
    np.testing.assert_array_equal(some.tokens, whole.tokens[index])
    assert [text.replace(" ", "") for text in opened(data).beginnings(some)] == [
        decode(data.tokenizer, bpe.encode(data.tokenizer, [pairs[i][0]])[0][:24]).strip() for i in index
    ]


@pytest.mark.parametrize(
    "overrides", [("train.objective.kind=next_token",), SEQ2SEQ, ("model.encoder.n_layers=1", SEQ2SEQ[0])]
)
def test_all_stacks_score_the_same_tokens_and_bytes(overrides: tuple[str, ...], tmp_path: Path) -> None:
    data = made(tmp_path)
    held_out = Batches.of(config(*overrides), opened(data)).held_out(SEQ_LEN, None)
    pairs = texts_of(data, "held_out")
    assert held_out.measure == "bits_per_byte"
    assert held_out.bytes is not None
    assert held_out.bytes.sum() == sum(len(target.encode()) for _, target in pairs)
    for row, (_, target) in enumerate(pairs):
        scored = held_out.batch.targets[row, held_out.counted[row]]
        assert scored.tolist() == [*bpe.encode(data.tokenizer, [target])[0], data.manifest.end_of_text]


# --- configs ------------------------------------------------------------------------------------------------------


def test_a_config_reads_pairs_itself(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", some_pairs(300))
    settings = config("data.pairs=[en,de]", "data.held_out=0.2", data=file).data
    data = open_training_data(settings, VOCAB)
    assert isinstance(data, PairData)
    assert data.fingerprint == made(tmp_path).fingerprint
    assert "pairs of 'en' and 'de'" in str(about_data(settings))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.objective.kind=masked", "model.attention.visibility=two_sided"), "masked chooses the tokens .* pairs"),
        (("train.objective.kind=prefix", "model.attention.visibility=prefix"), "prefix chooses the tokens .* pairs"),
        (("train.document_mask=true",), "train.document_mask: true, but each window of the data is one pair"),
        (("data.pairs=[en,de]",), "data.pairs is .* complete data folder; remove this setting"),
        (("data.mixture.b.path=DATA", "data.path=python-stdlib"), r"data.mixture.b.path: .* is a folder of pairs"),
        (
            ("train.seq_len=64",),
            r"a\.jsonl:\d+: the source has \d+ tokens; a window of 64 tokens .*; allowed: a length",
        ),
        (("train.seq_len=128", "train.eval_seq_len=64"), r"a window of 64 tokens holds sources of up to 30"),
    ],
)
def test_settings_that_do_not_fit_pairs_are_refused(overrides: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder = made(tmp_path).path
    overrides = tuple(text.replace("DATA", str(folder)) for text in overrides)
    settings = config("model.max_seq_len=128", "train.batch_tokens=256", *overrides, data=folder)
    if "data.mixture" in overrides[0]:
        settings = config(*overrides)
    with pytest.raises(UserError, match=message):
        train(settings, tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()


def test_plain_text_has_no_pairs(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"seq2seq needs pairs .*allowed: data.pairs, a folder made by `archlab data"):
        train(config(*SEQ2SEQ, data=text), tmp_path / "run", Callback())


def test_a_config_names_columns_by_number(tmp_path: Path) -> None:
    file, _ = written_tsv("numbers", tmp_path, some_pairs(100))
    data = open_training_data(config("data.pairs=[3,2]", "data.held_out=0.2", data=file).data, VOCAB)
    assert isinstance(data, PairData)
    with pytest.raises(UserError, match=r"data\.pairs  en and 2; allowed: two names, or two numbers"):
        config("data.pairs=[en,2]", data=file)
    with pytest.raises(UserError, match=r"data\.pairs  en, de and data.task = recall; allowed: one of the two"):
        config("data.pairs=[en,de]", "data.task.kind=recall")
