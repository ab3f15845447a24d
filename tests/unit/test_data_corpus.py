"""From sources to documents, and the choice of held-out documents."""

import gzip
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from archlab.data import contents
from archlab.data.contents import Document
from archlab.data.corpus import Corpus
from archlab.data.docstrings import prose
from archlab.data.split import choose_split
from archlab.data.template import TextTemplate
from archlab.errors import UserError


def text_of(corpus: Corpus, split: str, held_out: float = 0.2) -> str:
    """Return the text of the first fold (held_out), or of everything else."""
    pieces = choose_split(corpus, held_out).pieces(corpus)
    return "".join(p.text for p in pieces if (p.fold == 0) == (split == "held_out"))


def folds_of(corpus: Corpus, held_out: float) -> dict[int | None, list[str]]:
    """Return the names of the documents, or of their parts, in each fold."""
    found: dict[int | None, list[str]] = {}
    for piece in choose_split(corpus, held_out).pieces(corpus):
        found.setdefault(piece.fold, []).append(piece.name)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    (root / "deep").mkdir(parents=True)
    for i in range(40):
        (root / ("deep" if i % 2 else ".") / f"{i:02d}.txt").write_text(f"document {i}\n" * 20, encoding="utf-8")
    return root


def test_stdlib_has_the_library_and_no_tests():
    names = [d.name for d in Corpus(["python-stdlib"])]
    assert "ast.py" in names
    assert "json/decoder.py" in names
    assert names == sorted(names)
    assert not [n for n in names if {"test", "tests", "site-packages"} & set(n.split("/"))]


CODE = '''
"""A module about numbers. It has a heading and an example, which are left out.

Example
-------

    >>> This is an example of code that ends with a full stop.
"""

class Sum:
    """Add the numbers of a list,
    one after another, from left to right.

    values : list of float
        The numbers that are added to each other.

    Too short."""

    async def add(self):
        """Add the numbers of a list, one after another, from left to right."""  # again

    def formula(self):
        """The sum is x_1 + x_2 + x_3 + ... + x_n (see https://a.b/c?d=1) for n > 3 and x_i >= 0.

        F is the name of the result, which is "exact" for whole numbers."""
'''


def test_prose_has_the_sentences_of_docstrings_once():
    assert prose(CODE).split("\n") == [
        "A module about numbers. It has a heading and an example, which are left out.",
        "Add the numbers of a list, one after another, from left to right.",
        'F is the name of the result, which is "exact" for whole numbers.',
    ]
    assert prose("x = 1") == prose("not Python") == prose("a\0b") == ""


def test_docs_are_english_text_from_several_packages():
    documents = list(islice(Corpus(["python-docs"]), 200))
    assert all(document.name.startswith("torch/") for document in documents)
    words = " ".join(document.text for document in documents).split()
    assert 0.03 < sum(word == "the" for word in words) / len(words) < 0.1  # about 6% of English words
    packages = {file.name.partition("/")[0] for file in Corpus(["python-docs"]).files()}
    assert packages == {"torch", "networkx", "numpy", "scipy", "sympy"}
    assert not [file for file in Corpus(["python-docs"]).files() if {"tests", "testing"} & set(file.path.parts)]
    assert re.fullmatch(r"python-docs \(torch \d+\.\d+\.\d+ and 4 others\)", str(Corpus(["python-docs"])))


def test_a_folder_is_read_recursively_in_order_and_binary_files_are_counted(folder: Path):
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / ".hidden").write_text("no")
    corpus = Corpus([str(folder)])
    names = [d.name for d in corpus]
    assert names == sorted(names)
    assert len(names) == 40
    assert "texts/deep/01.txt" in names
    assert corpus.omissions.not_text == 2


def test_names_do_not_depend_on_where_the_folder_lies(folder: Path, tmp_path: Path):
    before = list(Corpus([str(folder)]))
    (tmp_path / "elsewhere").mkdir()
    assert list(Corpus([str(folder.rename(tmp_path / "elsewhere" / "texts"))])) == before


def test_glob_and_overlapping_sources_read_each_file_once(folder: Path):
    by_glob = list(Corpus([f"{folder}/**/*.txt"]))
    assert len(by_glob) == 40
    assert list(Corpus([f"{folder}/**/*.txt", str(folder), str(folder / "00.txt")])) == by_glob


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("*.txt", 20), ("*/*.txt", 20), ("**/*.txt", 40), ("**", 40), ("**/0?.txt", 10), ("[!0]?.txt", 15), (".h*", 1)],
)
def test_what_a_glob_finds(folder: Path, pattern: str, count: int):
    (folder / ".hidden").write_text("no")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.txt").write_text("no")
    assert len(list(Corpus([f"{folder}/{pattern}"]))) == count


def test_links_in_circles_pipes_and_devices_are_passed_by(folder: Path):
    """A glob that followed the links would find 2^40 paths to every file."""
    before = [d.text for d in Corpus([str(folder)])]
    for name, target in (("a", "."), ("b", "."), ("up", ".."), ("self.txt", "self.txt"), ("gone.txt", "nowhere")):
        (folder / name).symlink_to(target)
    (folder / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.txt")
    assert [d.text for d in Corpus([str(folder)])] == before
    assert [d.text for d in Corpus([f"{folder}/**/*.txt"])] == before
    for name, says in (
        ("pipe.txt", "this is a pipe or a device"),
        ("zero.txt", "a pipe"),
        ("self.txt", "broken or circular"),
    ):
        with pytest.raises(UserError, match=says):
            list(Corpus([str(folder / name)]))


def test_files_with_names_in_latin1_are_divided_as_others_are(folder: Path):
    for i in range(40):
        (folder / f"caf\udce9{i}.txt").write_text("coffee\n" * 20)
    held_out = text_of(Corpus([str(folder)]), "held_out")
    assert held_out.count("document") > 40
    assert held_out.count("coffee") > 40


def test_jsonl_and_parquet(tmp_path: Path):
    texts = ["one\nline", "é ☃", ""]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t, "n": 1}) for t in texts) + "\n\n")
    parquet.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    assert [d.text for d in Corpus([str(tmp_path)])] == texts[:2] * 2
    assert list(Corpus([str(tmp_path / "a.jsonl")]))[1] == Document("a.jsonl:2", "é ☃")


def as_gzip(data: bytes) -> bytes:
    return gzip.compress(data[:40]) + gzip.compress(data[40:])


def as_zstd(data: bytes) -> bytes:
    return b"".join(pa.compress(part, "zstd", asbytes=True) for part in (data[:40], data[40:]))


COMPRESSED = [("gz", as_gzip), ("zst", as_zstd)]


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSED)
def test_compressed_text_and_lines(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]):
    """Files have several frames, as multi-threaded compressors write them. Large JSONL files are often called .json."""
    lines = "\n".join(json.dumps({"text": f"text {i} é"}) for i in range(50)).encode()
    for name, content in (
        ("a.jsonl", lines),
        ("b.json", lines),
        ("c.txt", "é\n".encode() * 99),
        ("d.tar", b"x\0" * 99),
    ):
        (tmp_path / f"{name}.{suffix}").write_bytes(compress(content))
    corpus = Corpus([str(tmp_path)])
    assert [d.text for d in corpus] == [*[f"text {i} é" for i in range(50)] * 2, "é\n" * 99]
    assert corpus.omissions.not_text == 1
    assert next(iter(corpus)).name == f"{tmp_path.name}/a.jsonl.{suffix}:1"


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSED)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_damaged_compressed_files_are_named(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], name: str):
    """Truncated files are the most important case: the missing end must not go unnoticed."""
    draw, file = random.Random(0), tmp_path / f"{name}.{suffix}"
    lines = "".join(json.dumps({"text": "".join(draw.choices("abcdef", k=90))}) + "\n" for _ in range(500))
    whole = compress(lines.encode())
    for cut in (whole[:-1], whole[:-9], whole[: len(whole) // 2], whole[:60], b"nonsense" + whole):
        file.write_bytes(cut)
        with pytest.raises(UserError, match=rf"{re.escape(str(file))}: damaged: "):
            list(Corpus([str(file)]))


TEXTS = [f"text {i} é\n" for i in range(30)]


def save_as_datasets_does(folder: Path, texts: list[str]) -> None:
    """Arrow streams in shards, and two metadata files."""
    folder.mkdir(parents=True)
    for n, part in enumerate((texts[:20], texts[20:])):
        table = pa.table({"id": range(len(part)), "text": part})
        with pa.ipc.new_stream(str(folder / f"data-{n:05}-of-00002.arrow"), table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
    for name in ("dataset_info.json", "state.json"):
        (folder / name).write_text('{"text": "no text of it"}')


def test_a_saved_data_set(tmp_path: Path):
    save_as_datasets_does(tmp_path / "saved", TEXTS)
    found = list(Corpus([str(tmp_path / "saved")]))
    assert [d.text for d in found] == TEXTS
    assert found[20].name == "saved/data-00001-of-00002.arrow:1"
    with pytest.raises(UserError, match=r"no column 'body'; found: id, text"):
        list(Corpus([str(tmp_path / "saved")], TextTemplate(("body",))))
    save_as_datasets_does(tmp_path / "split" / "train", TEXTS)
    (tmp_path / "split" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UserError, match="has splits; give the folder of one of them: train"):
        list(Corpus([str(tmp_path / "split")]))
    shard = tmp_path / "saved" / "data-00000-of-00002.arrow"
    for damaged, says in ((b"nonsense", "not an Arrow stream"), (shard.read_bytes()[:-300], "damaged after row 14")):
        shard.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"data-00000-of-00002\.arrow: {says}"):
            list(Corpus([str(tmp_path / "saved")]))
        shutil.rmtree(tmp_path / "saved")
        save_as_datasets_does(tmp_path / "saved", TEXTS)


def test_data_sets_of_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If `datasets` is installed, archlab reads what it saves and downloads. Otherwise, hub sources are refused."""
    if find_spec("datasets") is None:
        with pytest.raises(UserError, match=r"hf:owner/name needs the extra .datasets. .*; run: pip install"):
            list(Corpus(["hf:owner/name"]))
        return
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = import_module("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    made = datasets.Dataset.from_dict({"text": TEXTS}).select([3, 1, 2, *range(4, 30)])
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    assert [d.text for d in Corpus([str(tmp_path / "saved")])] == made["text"][:]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    assert [d.text for d in Corpus([f"hf:{tmp_path / 'lines'}"])] == TEXTS
    with pytest.raises(UserError, match=r"hf:.*lines::test: "):
        list(Corpus([f"hf:{tmp_path / 'lines'}::test"]))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": ', "not valid JSON"),
        ('{"body": "x"}', "no field 'text'; found: body"),
        ('{"text": 3}', "'text' is a number"),
        ("[1]", "found an array"),
        (r'{"text": "\ud800"}', "surrogate"),
        ('{"text": ' + "[" * 100_000, "not valid JSON"),
        ('{"text": ' + "1" * 5000 + "}", "not valid JSON"),
    ],
)
def test_bad_jsonl_names_file_and_line(tmp_path: Path, line: str, says: str):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2") as error:
        list(Corpus([str(tmp_path)]))
    assert says in str(error.value)


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("missing_at", [0, 2])
def test_a_missing_field_is_answered_by_the_near_name_and_by_what_helps(tmp_path, as_table, missing_at):
    """Skipping invalid records helps with single records, but not with a misspelled field, which all records lack."""
    with_title = {"title": "a", "body": "b"}
    if as_table:
        parquet.write_table(pa.table({name: [value] for name, value in with_title.items()}), tmp_path / "a.parquet")
        list(Corpus([str(tmp_path)], TextTemplate(("title",))))
    else:
        records = [*[{**with_title, "titel": "c"}] * missing_at, with_title]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    for template in (TextTemplate.parse("{titel}"), TextTemplate(("titel",))):
        with pytest.raises(UserError) as error:
            list(Corpus([str(tmp_path)], template))
        first, *others = str(error.value).splitlines()
        assert first.endswith("'titel'; did you mean title? found: title, body")
        assert [line for line in others if "--field" in line] == []
        assert any("--skip-invalid" in line for line in others) == (missing_at > 0 and not as_table)
    with pytest.raises(
        UserError,
        match=r"no .* 'text'; found: title.*\n`archlab data --field NAME` reads another field\. For conversations: .*--chat NAME",
    ):
        list(Corpus([str(tmp_path)]))


def test_bad_parquet(tmp_path: Path):
    parquet.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text'; found: body"):
        list(Corpus([str(tmp_path)]))
    (tmp_path / "a.parquet").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a Parquet file"):
        list(Corpus([str(tmp_path)]))


def test_damaged_parquet_is_named(tmp_path: Path):
    """All errors of pyarrow are handled: its own exceptions, OSErrors without a file, and text that is not UTF-8."""
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"text {i} é" for i in range(40)]}), file, compression="none")
    whole, draw, said = file.read_bytes(), random.Random(0), set[str]()
    damaged = [bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
               for place in draw.sample(range(len(whole)), 150)]  # fmt: skip
    damaged += [whole[: draw.randrange(len(whole))] for _ in range(20)]
    damaged += [whole.replace("é".encode(), b"\xff\xff")]
    for content in damaged:
        file.write_bytes(content)
        try:
            list(Corpus([str(file)]))
        except UserError as error:
            said.add(str(error))
    assert len(said) > 10
    assert all(str(file) in message for message in said)
    assert any(message.startswith(f"{file}, row 1: 'text' is not valid UTF-8") for message in said)


def test_a_file_that_does_not_fit_into_memory_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def too_much(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr("archlab.data.contents._decode", too_much)
    with pytest.raises(UserError, match=r"00\.txt: 220 bytes do not fit into memory"):
        list(Corpus([str(folder)]))


def test_bad_sources(tmp_path: Path):
    (tmp_path / "shakespeare.txt").write_bytes(b"\0\1")
    with pytest.raises(UserError, match=r"shakespeare\.txt: binary"):
        list(Corpus([str(tmp_path / "shakespeare.txt")]))
    with pytest.raises(UserError, match="no text; left out: 1 not UTF-8 text"):
        choose_split(Corpus([str(tmp_path)]), 0.1)
    with pytest.raises(UserError, match=r"did you mean shakespeare\.txt"):
        list(Corpus([str(tmp_path / "shakespear.txt")]))
    with pytest.raises(UserError, match="no such file"):
        list(Corpus([str(tmp_path / "*.md")]))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match=r"empty\.txt has no text"):
        choose_split(Corpus([str(tmp_path / "empty.txt")]), 0.1)
    with pytest.raises(UserError, match="no source"):
        list(Corpus([""]))


def test_whole_files_are_held_out_by_their_name(folder: Path):
    corpus = Corpus([str(folder)])
    train, held_out = text_of(corpus, "train"), text_of(corpus, "held_out")
    for i in range(40):
        text = (folder / ("deep" if i % 2 else ".") / f"{i:02d}.txt").read_text()
        assert (text in train) != (text in held_out)
    assert len(held_out) / len(train + held_out) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(("held_out", "n_folds"), [(0.05, 20), (0.1, 10), (0.3, 3), (0.02, 20), (0.9, 1)])
@pytest.mark.slow
def test_every_document_is_in_one_fold_and_folds_are_of_one_size(tmp_path: Path, held_out: float, n_folds: int):
    sizes = random.Random(0)
    for i in range(1200):
        (tmp_path / f"{i}.txt").write_text("x" * sizes.randrange(1, 100))
    found = folds_of(Corpus([str(tmp_path)]), held_out)
    assert sorted(name for names in found.values() for name in names) == sorted(
        f"{tmp_path.name}/{i}.txt" for i in range(1200)
    )
    lengths = {fold: sum((tmp_path.parent / name).stat().st_size for name in names) for fold, names in found.items()}
    total, rest = sum(lengths.values()), lengths.pop(None, 0)
    assert set(lengths) == set(range(n_folds))
    assert list(lengths.values()) == pytest.approx([held_out * total] * n_folds, rel=0.15)
    assert rest == pytest.approx((1 - n_folds * held_out) * total, rel=0.15, abs=100)


def test_other_documents_leave_most_of_a_fold_as_it_is(folder: Path):
    before = folds_of(Corpus([str(folder)]), 0.2)
    (folder / "new.txt").write_text("new\n" * 20)
    after = folds_of(Corpus([str(folder)]), 0.2)
    assert sum(len({*before[fold]} & {*after[fold]}) for fold in before) >= 36


@pytest.mark.parametrize("length", [2, 3, 7, 40, 1000])
def test_stretches_of_one_file_hold_every_character_in_order(tmp_path: Path, length: int):
    text = "".join(random.Random(length).choice("ab\n") for _ in range(length))
    (tmp_path / "one.txt").write_text(text)
    corpus = Corpus([str(tmp_path / "one.txt")])
    pieces = list(choose_split(corpus, 0.1).pieces(corpus))
    assert "".join(p.text for p in pieces) == text
    folds = [p.fold for p in pieces if p.fold is not None]
    assert folds == sorted(folds, reverse=True) == list(range(len(folds)))[::-1]
    assert all(p.text for p in pieces)
    if length >= 40:
        assert len(folds) in (9, 10)
        assert max(len(p.text) for p in pieces) < 0.16 * length


def test_the_tail_of_a_single_file_is_held_out_from_the_start_of_a_line(tmp_path: Path):
    text = "".join(f"line {i}\n" for i in range(1000))
    (tmp_path / "one.txt").write_text(text)
    corpus = Corpus([str(tmp_path / "one.txt")])
    train, held_out = text_of(corpus, "train"), text_of(corpus, "held_out")
    assert train + held_out == text
    assert train.endswith("\n")
    assert len(held_out) / len(text) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("text", "train"),
    [
        ("ab", "a"),
        ("no line ends at all", "no line ends at"),
        ("\n\n", "\n"),
        ("a\n" + "b" * 50, "a\n" + "b" * 40),
        ("b" * 40 + "\n" + "b" * 11, "b" * 40 + "\n"),
        ("b" * 42 + "\n" + "b" * 9, "b" * 42 + "\n"),
        ("b" * 36 + "\n" + "b" * 15, "b" * 36 + "\n" + "b" * 5),
    ],
)
def test_both_sides_of_a_tiny_text_hold_something(tmp_path: Path, text: str, train: str):
    (tmp_path / "one.txt").write_text(text)
    corpus = Corpus([str(tmp_path / "one.txt")])
    assert text_of(corpus, "train") == train
    assert text_of(corpus, "held_out") == text[len(train) :]


def test_a_file_longer_than_the_held_out_share_is_trained_on(tmp_path: Path):
    for i in range(50):
        (tmp_path / f"{i}.txt").write_text("short\n" * 10)
    corpus = Corpus([str(tmp_path)])
    chosen = folds_of(corpus, 0.2)[0]
    (tmp_path.parent / chosen[0]).write_text("long\n" * 150)
    assert folds_of(corpus, 0.2)[None] == [chosen[0]]
    assert set(folds_of(corpus, 0.2)[0]) >= set(chosen[1:])


def test_long_documents_are_cut_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("archlab.data.split.PIECE", 10)
    (tmp_path / "one.txt").write_text("a\nbb\nccccccccccccccccccccccc\ndd\n\n\ne" * 5)
    corpus = Corpus([str(tmp_path / "one.txt")])
    pieces = list(choose_split(corpus, 0.2).pieces(corpus))
    assert "".join(p.text for p in pieces) == (tmp_path / "one.txt").read_text()
    assert max(len(p.text) for p in pieces) <= 10
    assert [p.begins_document for p in pieces].count(True) == len({p.fold for p in pieces}) == 5


def test_text_that_changes_while_it_is_read_is_noticed(tmp_path: Path):
    (tmp_path / "one.txt").write_text("before\n" * 9)
    corpus = Corpus([str(tmp_path / "one.txt")])
    split = choose_split(corpus, 0.2)
    (tmp_path / "one.txt").write_text("behind\n" * 9)
    with pytest.raises(UserError, match="changed while"):
        list(split.pieces(corpus))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_nothing_or_everything_is_refused(folder: Path, share: float):
    with pytest.raises(UserError, match=r"data\.held_out"):
        choose_split(Corpus([str(folder)]), share)


def test_links_out_of_a_folder_are_left_out_and_named(tmp_path: Path):
    """A link to a private file must not add it to a corpus. In the hub's cache, all files are links to `blobs`."""
    (tmp_path / "private").write_text("my secret password")
    corpus = tmp_path / "hub" / "snapshots" / "0a1b" / "en"
    for folder in (corpus, tmp_path / "hub" / "blobs"):
        folder.mkdir(parents=True)
    (corpus / "a.txt").write_text("text")
    (corpus / "b.txt").symlink_to("a.txt")
    (tmp_path / "hub" / "blobs" / "5c").write_text("of the hub")
    (corpus / "c.txt").symlink_to("../../../blobs/5c")
    (corpus / "d.txt").symlink_to(tmp_path / "private")
    for source in (corpus.parent, corpus, corpus / "*.txt", f"{corpus.parent}/**/*.txt"):
        found = Corpus([str(source)])
        assert [d.text for d in found] == ["text", "of the hub"]
        assert (found.omissions.links, str(found.omissions)) == (1, "1 linked from elsewhere")
        assert "d.txt: a link that points outside the folder, to " in found.omissions.first[0]
        assert not any(file.path.name == "d.txt" for file in found.files())
    assert [d.text for d in Corpus([str(corpus / "d.txt")])] == ["my secret password"]
    assert len(list(Corpus([str(corpus), str(tmp_path / "private")]))) == 3


RECORDS = [
    {"title": "One", "meta": {"nested": {"body": "first"}}},
    {"title": "Two", "meta": {"nested": {"body": "second"}}},
    {"title": None, "meta": {"nested": {"body": "third"}}},
    {"title": "Four", "meta": {"nested": None}},
]


def write_records(folder: Path, kind: str, records: list[dict[str, object]]) -> Path:
    file = folder / f"a.{kind}"
    if kind == "jsonl":
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    elif kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(records), file, row_group_size=3)
    else:
        table = pa.Table.from_pylist(records)
        with pa.ipc.new_stream(str(file), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    return file


KINDS = pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])


@KINDS
def test_nested_fields_and_templates(tmp_path: Path, kind: str):
    file = str(write_records(tmp_path, kind, RECORDS[:2]))
    assert [d.text for d in Corpus([file], TextTemplate(("meta.nested.body",)))] == ["first", "second"]
    joined = TextTemplate.parse("{{{title}}}: {meta.nested.body}\n{title}")
    assert [d.text for d in Corpus([file], joined)] == ["{One}: first\nOne", "{Two}: second\nTwo"]
    assert str(joined) == r"template '{{{title}}}: {meta.nested.body}\n{title}'"
    for field, says in (
        ("meta.nested.bodi", "did you mean meta.nested.body? found: meta.nested.body"),
        ("title.x", "no (field|column) 'title.x'"),
        ("meta.nested", "'meta.nested' is an object; expected a string"),
    ):
        with pytest.raises(UserError, match=says.replace("?", r"\?")):
            list(Corpus([file], TextTemplate((field,))))


@KINDS
def test_a_field_whose_name_has_dots_goes_before_a_nested_one(tmp_path: Path, kind: str):
    record = {"a.b": "flat", "a": {"b": "nested"}}
    if kind == "parquet":  # pyarrow would read both columns under this name
        record.pop("a")
    assert [d.text for d in Corpus([str(write_records(tmp_path, kind, [record]))], TextTemplate(("a.b",)))] == ["flat"]


@KINDS
def test_a_null_is_an_error_or_left_out(tmp_path: Path, kind: str):
    file = write_records(tmp_path, kind, RECORDS)
    where, template = (
        f"{file}, {'line' if kind == 'jsonl' else 'row'}",
        TextTemplate(("title", "meta.nested.body"), ("", " ", "")),
    )
    with pytest.raises(UserError, match=re.escape(f"{where} 3: 'title' is null; expected a string")):
        list(Corpus([str(file)], template))
    corpus = Corpus([str(file)], template, skip_invalid=True)
    assert [d.text for d in corpus] == ["One first", "Two second"]
    assert str(corpus.omissions) == "2 invalid"
    assert corpus.omissions.first[0] == f"{where} 3: 'title' is null; expected a string"
    assert corpus.omissions.first[1].startswith(f"{where} 4: ")


@pytest.mark.parametrize("text", ["{title", "title}", "{}", "{a{b}}", "title", ""])
def test_no_template(text: str):
    with pytest.raises(UserError, match=r"--template: .* has (an unbalanced|no field)"):
        TextTemplate.parse(text)


def test_what_cannot_be_read_is_counted_and_the_first_are_named(tmp_path: Path):
    """Documents keep the names that they have without the invalid ones, so they stay in the same folds."""
    lines = ['{"text": "a"}', "no JSON", '{"text": 3}', '{"text": "b"}', *["[]"] * 9]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "c.png").write_bytes(b"\0")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"cut" * 99)[:-9])
    (tmp_path / "e.parquet").write_bytes(b"nonsense")
    (tmp_path / "f.txt").write_text("c")
    corpus = Corpus([str(tmp_path)], skip_invalid=True)
    found = list(corpus)
    assert [(d.name.removeprefix(f"{tmp_path.name}/"), d.text) for d in found] == [
        ("a.jsonl:1", "a"),
        ("a.jsonl:4", "b"),
        ("f.txt", "c"),
    ]
    assert str(corpus.omissions) == "13 invalid, 2 not UTF-8 text"
    listed = [line.removeprefix(f"{tmp_path}/").partition(":")[0].partition(",")[0] for line in corpus.omissions.first]
    assert listed == [*["a.jsonl"] * contents.LISTED_OF_FILE, "b.txt", "d.txt.gz", "e.parquet"]
    assert corpus.omissions.first[0] == f"{tmp_path / 'a.jsonl'}, line 2: not valid JSON"
    binary = Corpus([str(tmp_path / "c.png"), str(tmp_path / "f.txt")], skip_invalid=True)
    assert (len(list(binary)), binary.omissions.invalid) == (1, 1)


def test_a_file_that_is_too_large_when_unpacked_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contents, "LARGEST_UNPACKED", 3 * 2**20)
    monkeypatch.setattr(contents, "LONGEST_LINE", 2**20)
    for data, says in ((b"a " * 2**21, r"a\.txt\.gz: larger than 3 MiB when unpacked"), (b"a\0" * 2**21, "binary")):
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(data, 1))
        with pytest.raises(UserError, match=says):
            list(Corpus([str(tmp_path / "a.txt.gz")]))
    long = b'{"text": "' + b"a" * 3 * 2**20 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + long + b'{"text": "y"}')
    corpus = Corpus([str(tmp_path / "a.jsonl")], skip_invalid=True)
    assert [d.text for d in corpus] == ["x", "y"]
    assert corpus.omissions.first == [f"{tmp_path / 'a.jsonl'}, line 2: longer than 1 MiB; split the line"]


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.slow
def test_few_rows_of_a_parquet_file_are_in_memory_at_once(tmp_path: Path, dictionary: bool):
    """All rows together take 160 MB. For repeated values, the file has a dictionary and a few bytes."""
    texts = ["abcdefgh" * 2**17] * 160
    with parquet.ParquetWriter(
        tmp_path / "a.parquet",
        pa.schema([("text", pa.string())]),
        use_dictionary=dictionary,
        dictionary_pagesize_limit=2**30,
        compression="zstd",
        write_batch_size=1,
    ) as file:
        file.write_table(pa.table({"text": texts}))
    del texts
    before, most = pa.total_allocated_bytes(), 0
    for document in Corpus([str(tmp_path / "a.parquet")]):
        assert len(document.text) == 2**20
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 40 * 2**20
