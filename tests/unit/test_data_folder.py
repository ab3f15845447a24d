"""Data folders: written completely or not at all, checked when opened, and found again in the cache."""

import errno
import json
import multiprocessing
import os
import shutil
import time
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from archlab.cli import app
from archlab.config.schema import DataConfig
from archlab.config.tasks.recall import Recall
from archlab.data import corpus, file_cache, shards
from archlab.data.open import open_data, tokens_per_byte
from archlab.data.prepare import prepare
from archlab.data.shards import DataFolder
from archlab.data.template import TextTemplate
from archlab.data.text_data import TextData, TextSource
from archlab.errors import UserError
from archlab.pricing.units import binary


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(60):
        text = f"é document {i} <|endoftext|>\n" + "".join(f"word{j} again and {j * i}\n" for j in range(9 * (i % 7)))
        (tmp_path / "texts" / f"{i}.txt").write_text(text, encoding="utf-8")
    return tmp_path / "texts"


def made(texts: Path, out: Path) -> DataFolder:
    return prepare([str(texts)], out, vocab_size=300, held_out=0.2)


def everything(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_every_byte_of_both_sides_is_counted_once(texts: Path, tmp_path: Path):
    data = made(texts, tmp_path / "out")
    total = sum(f.stat().st_size for f in texts.iterdir())
    assert sum(part.bytes for part in data.manifest.parts) == total
    held_out, *others = [data.manifest.folds[0], *data.manifest.folds[1:], data.manifest.rest]
    for tokens, parts in ((data.train, others), (data.held_out, [held_out])):
        ids = tokens.read(0, len(tokens))
        assert data.token_bytes[ids].sum() == sum(part.bytes for part in parts)
        assert (ids == data.manifest.end_of_text).sum() == sum(part.documents for part in parts)
        assert ids[0] == data.manifest.end_of_text
    assert sum(part.documents for part in data.manifest.parts) == 60


def test_the_documents_come_back(texts: Path, tmp_path: Path):
    data = made(texts, tmp_path / "out")
    found: list[str] = []
    for tokens in (data.train, data.held_out):
        ids = tokens.read(0, len(tokens))
        starts = [*np.flatnonzero(ids == data.manifest.end_of_text), len(ids)]
        found += [data.tokenizer.decode(ids[a:b].tolist()) for a, b in pairwise(starts)]
    assert sorted(found) == sorted(f.read_text() for f in texts.iterdir())


def test_making_it_twice_gives_the_same_bytes_and_is_already_there(texts: Path, tmp_path: Path):
    a, b = made(texts, tmp_path / "a"), made(texts, tmp_path / "b")
    assert everything(a.path) == everything(b.path)
    stamp = (a.path / "manifest.json").stat().st_mtime_ns
    assert made(texts, tmp_path / "a").fingerprint == b.fingerprint
    assert (a.path / "manifest.json").stat().st_mtime_ns == stamp


def test_the_fingerprint_follows_the_text_and_not_the_place(texts: Path, tmp_path: Path):
    before = made(texts, tmp_path / "a").fingerprint
    (tmp_path / "a").rename(tmp_path / "moved")
    assert DataFolder.open(tmp_path / "moved").fingerprint == before
    (texts / "0.txt").write_text("other text")
    assert made(texts, tmp_path / "b").fingerprint != before


def test_the_fingerprint_is_of_every_token(tmp_path: Path):
    found: list[str] = []
    for place, last in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "one.txt").write_text("the same line\n" * 200 + last)
        found.append(made(tmp_path / place / "one.txt", tmp_path / f"{place}-out").fingerprint)
    assert found[0] == found[1] != found[2]


def test_shards_are_one_sequence(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = made(texts, tmp_path / "whole")
    monkeypatch.setattr(shards, "SHARD_TOKENS", 211)
    data = made(texts, tmp_path / "cut")
    assert sum(len(part.shards) for part in data.manifest.parts) > 20
    expected = whole.train.read(0, len(whole.train))
    assert len(data.train) == len(expected)
    for start in range(0, len(expected) - 100, 7):
        np.testing.assert_array_equal(data.train.read(start, start + 100), expected[start : start + 100])
    for start in range(150, 420):  # both ends on and next to borders of shards
        np.testing.assert_array_equal(data.train.read(start, 422), expected[start:422])


def damage_truncate(folder: Path) -> None:
    (folder / "fold-01-00000.bin").write_bytes((folder / "fold-01-00000.bin").read_bytes()[:-3])


def damage_alter(folder: Path) -> None:
    data = bytearray((folder / "fold-00-00000.bin").read_bytes())
    data[5] ^= 1
    (folder / "fold-00-00000.bin").write_bytes(data)


def damage_lengthen(folder: Path) -> None:
    (folder / "fold-01-00000.bin").open("ab").write(b"xx")


def damage_rename(folder: Path) -> None:
    (folder / "fold-01-00000.bin").rename(folder / "fold-01-0.bin")


def damage_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")


def damage_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def edit(folder: Path, **change: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def damage_version(folder: Path) -> None:
    edit(folder, format=99)


def damage_field(folder: Path) -> None:
    edit(folder, vocab_size="many")


def damage_vocab(folder: Path) -> None:
    edit(folder, vocab_size=20)


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_truncate, r"fold-01-00000\.bin: truncated: expected \d+ bytes, found \d+"),
        (damage_alter, r"fold-00-00000\.bin: altered"),
        (damage_lengthen, r"fold-01-00000\.bin: too long: expected"),
        (damage_rename, r"fold-01-00000\.bin: missing"),
        (damage_tokenizer, r"tokenizer\.json: altered"),
        (damage_no_tokenizer, r"tokenizer\.json: missing"),
        (damage_version, r"manifest\.json: format version is 99; allowed: 2"),
        (damage_field, r"manifest\.json: vocab_size: "),
        (damage_vocab, r"manifest\.json: vocab_size is 20; the tokenizer has 300"),
        (damage_manifest, r"manifest\.json: not valid JSON"),
    ],
)
def test_damage_is_named(texts: Path, tmp_path: Path, damage, says: str):
    folder = made(texts, tmp_path / "out").path
    damage(folder)
    with pytest.raises(UserError, match=says):
        DataFolder.open(folder)


def test_no_data_folder(tmp_path: Path):
    with pytest.raises(UserError, match=r"manifest\.json does not exist"):
        DataFolder.open(tmp_path)


@pytest.mark.parametrize("at", [1, 3])
def test_a_full_disk_leaves_nothing_behind(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 50)
    calls, opened = [0], Path.open

    def full(self: Path, mode: str = "r", *args, **kwargs):
        if "a" in mode:
            calls[0] += 1
            if calls[0] > at:
                raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="out: cannot write: No space left"):
        made(texts, tmp_path / "out")
    assert calls[0] > at
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupt_leaves_nothing_behind(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shards.ShardWriter, "finish", interrupt)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        made(texts, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_folder_that_holds_something_else_is_refused(texts: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    made(texts, tmp_path / "out")  # an empty folder is allowed
    with pytest.raises(UserError, match="already contains other data"):
        prepare([str(texts)], tmp_path / "out", vocab_size=310, held_out=0.2)
    with pytest.raises(UserError, match="exists and is not a data folder"):
        made(texts, texts)
    with pytest.raises(UserError, match="exists and is not a data folder"):
        made(texts, texts / "0.txt")
    assert len(list(texts.iterdir())) == 60


def test_vocab_size_and_tokenizer_exclude_each_other(texts: Path, tmp_path: Path):
    with pytest.raises(UserError, match="give either"):
        prepare([str(texts)], tmp_path / "out", vocab_size=300, tokenizer=tmp_path / "t.json", held_out=0.2)


def test_text_is_prepared_once_into_the_cache(texts: Path, cache: Path):
    config = DataConfig(path=str(texts), held_out=0.2)
    data = open_data(config, 300)
    assert data.path.parent == cache
    assert data.manifest.vocab_size == 300
    stamp = data.path.stat().st_mtime_ns
    assert open_data(config, 300).path.stat().st_mtime_ns == stamp
    assert open_data(config, 310).path != data.path
    assert open_data(config.model_copy(update={"held_out": 0.3}), 300).path != data.path
    (texts / "0.txt").write_text("changed")
    assert open_data(config, 300).path != data.path
    assert len(list(cache.iterdir())) == 4


def test_a_data_folder_is_opened_if_the_model_has_room_for_its_ids(texts: Path, tmp_path: Path):
    data = made(texts, tmp_path / "out")
    config = DataConfig(path=str(tmp_path / "out"))
    assert open_data(config, 300).fingerprint == data.fingerprint
    assert open_data(config, 512).fingerprint == data.fingerprint
    with pytest.raises(UserError, match=r"model\.vocab_size is 299; .* allowed: 300 or more"):
        open_data(config, 299)


def prepared_fingerprint(path: str) -> str:
    return open_data(DataConfig(path=path, held_out=0.2), 300).fingerprint


@pytest.mark.slow
def test_processes_that_prepare_the_same_text_at_once_agree(texts: Path, cache: Path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(prepared_fingerprint, [str(texts)] * 2, chunksize=1)
    assert len(set(found)) == 1
    assert len(list(cache.iterdir())) == 1


def test_the_loser_of_a_race_uses_the_winners_folder(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    winner = made(texts, tmp_path / "winner")
    finish = shards.ShardWriter.finish

    def late(self: shards.ShardWriter):
        if winner.path.exists():
            winner.path.rename(tmp_path / "out")
        return finish(self)

    monkeypatch.setattr(shards.ShardWriter, "finish", late)
    assert made(texts, tmp_path / "out").fingerprint == winner.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "texts"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were hashed or read as text."""
    names: list[str] = []
    hash_of, read = file_cache.digests, corpus.contents

    def hashed(file: Path):
        names.append(file.name)
        return hash_of(file)

    def as_text(file: corpus.SourceFile, template: TextTemplate):
        names.append(file.path.name)
        return read(file, template)

    monkeypatch.setattr(file_cache, "digests", hashed)
    monkeypatch.setattr(corpus, "contents", as_text)
    monkeypatch.setattr(file_cache, "SETTLED", -1)  # otherwise files that a test has just written are not cached
    return names


def test_a_data_folder_is_hashed_once_until_a_file_changes(
    texts: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = made(texts, tmp_path / "out").path
    reads.clear()
    monkeypatch.setattr(file_cache, "LARGE", 1)
    assert DataFolder.open(folder).fingerprint == DataFolder.open(folder).fingerprint
    assert reads == []
    assert capsys.readouterr().err == ""
    shard = folder / "fold-01-00000.bin"
    shard.touch()
    DataFolder.open(folder)
    assert reads == ["fold-01-00000.bin"]  # the other files have not changed
    said = f"note: {shard}: checking the hash of {binary(shard.stat().st_size)}; this is repeated only when "
    assert capsys.readouterr().err.startswith(said)
    whole, before = shard.read_bytes(), shard.stat()
    for altered in (
        bytes([whole[0] ^ 1]) + whole[1:],
        whole,
    ):  # damaged, then repaired, each time with the old modification time
        shard.write_bytes(altered)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        if altered == whole:
            DataFolder.open(folder)
        for _ in range(2 * (altered != whole)):
            with pytest.raises(UserError, match=r"fold-01-00000\.bin: altered"):
                DataFolder.open(folder)


def lose_a_bit(file: Path, at: int) -> None:
    with file.open("r+b") as content:
        content.seek(at)
        [byte] = content.read(1)
        content.seek(at)
        content.write(bytes([byte ^ 1]))


def test_a_disk_that_loses_bits_of_a_small_set_is_noticed(
    texts: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
):
    """The operating system reports no change of the file, but every block is still checked."""
    folder = made(texts, tmp_path / "out").path
    monkeypatch.setattr(file_cache, "_state", lambda files: (str(files), 0))
    DataFolder.open(folder)
    reads.clear()
    DataFolder.open(folder)
    for at in (0, 77):
        lose_a_bit(folder / "fold-01-00000.bin", at)
        with pytest.raises(UserError, match=r"fold-01-00000\.bin: altered"):
            DataFolder.open(folder)
        lose_a_bit(folder / "fold-01-00000.bin", at)
    DataFolder.open(folder)
    assert reads == []


@pytest.fixture
def two_billion_tokens(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a sparse file of 4 GB, whose hash is assumed to be known."""
    folder, tokens = made(texts, tmp_path / "out").path, 2 * 10**9
    (folder / "rest-00000.bin").touch()
    os.truncate(folder / "rest-00000.bin", 2 * tokens)
    rest = json.loads((folder / "manifest.json").read_text())["rest"]
    edit(
        folder, rest=rest | {"tokens": tokens, "shards": [{"file": "rest-00000.bin", "tokens": tokens, "sha256": "0"}]}
    )
    full, part = divmod(2 * tokens, file_cache.BLOCK)
    blocks = [zlib.crc32(bytes(file_cache.BLOCK))] * full + [zlib.crc32(bytes(part))]
    digests = file_cache.digests

    def known(file: Path):
        return {"sha256": "0", "blocks": blocks} if file.name == "rest-00000.bin" else digests(file)

    monkeypatch.setattr(file_cache, "digests", known)
    monkeypatch.setattr(file_cache, "SETTLED", -1)
    DataFolder.open(folder)
    return folder


@pytest.mark.slow
def test_a_large_set_opens_in_a_moment(two_billion_tokens: Path, monkeypatch: pytest.MonkeyPatch):
    read = list[int]()
    block = file_cache._block
    monkeypatch.setattr(file_cache, "_block", lambda file, at: (read.append(at), block(file, at))[1])
    start = time.process_time()
    data = TextData([TextSource("large", DataFolder.open(two_billion_tokens))])
    assert data.held_out(16, 65536).tokens.shape[1] == 17
    assert time.process_time() - start < 1
    assert len(data.sources[0].folder.train) > 2 * 10**9
    assert len(read) == len({*read}) == file_cache.SPOTS
    assert max(read) > 10**9


def test_much_damage_to_a_large_set_is_noticed(two_billion_tokens: Path, monkeypatch: pytest.MonkeyPatch):
    """Every second block is damaged. The probability of missing this is 1 in 2^32."""
    monkeypatch.setattr(file_cache, "_state", lambda files: (str(files), 0))
    DataFolder.open(two_billion_tokens)
    for at in range(0, 4 * 10**9, 2 * file_cache.BLOCK):
        lose_a_bit(two_billion_tokens / "rest-00000.bin", at)
    with pytest.raises(UserError, match=r"rest-00000\.bin: altered"):
        DataFolder.open(two_billion_tokens)


def test_a_manifest_with_other_hashes_does_not_pass(texts: Path, tmp_path: Path, reads: list[str]):
    folder = made(texts, tmp_path / "out").path
    edit(folder, tokenizer_sha256="0" * 64)
    with pytest.raises(UserError, match=r"tokenizer\.json: altered"):
        DataFolder.open(folder)


def test_text_is_read_once_until_a_file_changes(texts: Path, cache: Path, reads: list[str]):
    config = DataConfig(path=str(texts), held_out=0.2)
    first = open_data(config, 300)
    reads.clear()
    assert open_data(config, 300).path == first.path
    assert reads == []
    for change in (
        lambda: (texts / "0.txt").write_text("changed"),
        lambda: (texts / "new.txt").write_text("new"),
        lambda: (texts / "new.txt").rename(texts / "newer.txt"),
        lambda: (texts / "newer.txt").unlink(),
    ):
        change()
        reads.clear()
        later = open_data(config, 300)
        assert later.path != first.path
        assert "1.txt" in reads
        first = later
    open_data(config.model_copy(update={"held_out": 0.3}), 300)
    assert len(list(cache.iterdir())) == 5  # without newer.txt, the text is the same as after the first change


@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_memory_is_none(texts: Path, cache: Path, reads: list[str], damage: bytes):
    config = DataConfig(path=str(texts), held_out=0.2)
    data = open_data(config, 300)
    for file in (cache.parent / "seen").iterdir():
        sealed = file.read_bytes()
        last = sealed.rindex(b'"') - 1  # last digit of the cached digest
        file.write_bytes(
            damage or sealed[:last] + (b"1" if sealed[last : last + 1] == b"0" else b"0") + sealed[last + 1 :]
        )
    reads.clear()
    assert open_data(config, 300).path == data.path
    assert {"1.txt", "fold-01-00000.bin"} <= set(reads)


def test_everything_is_read_if_the_cache_cannot_be_written(texts: Path, tmp_path: Path, cache: Path, reads: list[str]):
    folder = made(texts, tmp_path / "out").path
    shutil.rmtree(cache.parent)
    cache.parent.write_text("a file where the cache folder should be")
    for _ in range(2):
        reads.clear()
        DataFolder.open(folder)
        assert "fold-01-00000.bin" in reads


def test_what_has_just_changed_is_read_again(texts: Path, tmp_path: Path, reads: list[str], monkeypatch):
    """The file may change again within one tick of the file system's clock."""
    monkeypatch.setattr(file_cache, "SETTLED", 10**12)
    folder = made(texts, tmp_path / "out").path
    reads.clear()
    DataFolder.open(folder)
    assert "fold-01-00000.bin" in reads


def test_the_command_reads_all_again(texts: Path, tmp_path: Path, reads: list[str]):
    made(texts, tmp_path / "out")
    reads.clear()
    made(texts, tmp_path / "out")
    assert {"fold-01-00000.bin", "1.txt"} <= set(reads)


def test_a_shard_that_is_cut_while_in_use_is_named(texts: Path, tmp_path: Path):
    data = made(texts, tmp_path / "out")
    shard = tmp_path / "out" / "fold-04-00000.bin"  # the last shard
    starts = np.array([0, len(data.train) - 60])
    before = data.train.windows(starts, 50)
    assert before.shape == (2, 50)
    os.truncate(shard, 200)
    np.testing.assert_array_equal(data.train.windows(starts[:1], 50), before[:1])
    with pytest.raises(UserError, match=r"fold-04-00000\.bin was truncated while it was in use"):
        data.train.windows(starts, 50)


def test_file_names_may_be_invalid_utf8(texts: Path, tmp_path: Path):
    """Names are Latin-1 bytes. The manifest has them as text, and the split uses the names themselves."""
    for i in range(20):
        (texts / f"caf\udce9{i}.txt").write_text(f"coffee {i}\n" * 20)
    data = prepare([str(texts), str(texts / "caf\udce90.txt")], tmp_path / "out\udce9", vocab_size=300, held_out=0.2)
    assert data.manifest.source.endswith(r"caf\udce90.txt")
    assert sum(part.documents for part in DataFolder.open(data.path).manifest.parts) == 80
    (texts / "caf\udce91.jsonl").write_text("[]")
    with pytest.raises(UserError, match=r"caf.*1\.jsonl, line 1"):
        made(texts, tmp_path / "new")


def test_the_field_of_records_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": "no", "body": f"text {i}\n" * 9}) for i in range(30))
    )
    data = prepare(
        [str(tmp_path / "a.jsonl")], tmp_path / "out", vocab_size=300, held_out=0.2, template=TextTemplate(("body",))
    )
    assert data.manifest.source.endswith("a.jsonl (field 'body')")
    assert sum(part.bytes for part in data.manifest.parts) == sum(9 * len(f"text {i}\n") for i in range(30))
    with pytest.raises(UserError, match=r"line 1: no field 'bod'; did you mean body\? found: text, body$"):
        prepare(
            [str(tmp_path / "a.jsonl")], tmp_path / "new", vocab_size=300, held_out=0.2, template=TextTemplate(("bod",))
        )
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"work only on records .* found none in .*a\.txt; leave the option out"):
        prepare(
            [str(tmp_path / "a.txt")], tmp_path / "new", vocab_size=300, held_out=0.2, template=TextTemplate(("body",))
        )


def test_tokens_per_byte_are_those_of_the_whole_text(texts: Path, tmp_path: Path) -> None:
    data = prepare([str(texts)], tmp_path / "out", vocab_size=300, held_out=0.2)
    tokens = sum(part.tokens for part in (data.manifest.rest, *data.manifest.folds))
    n_bytes = sum(len(file.read_bytes()) for file in texts.rglob("*") if file.is_file())
    found = tokens_per_byte(DataConfig(path=str(tmp_path / "out")), 300)
    assert found == pytest.approx(tokens / n_bytes)
    with pytest.raises(UserError, match="a task has no text"):
        tokens_per_byte(DataConfig(task=Recall()), 300)


def test_a_data_folder_without_its_manifest_is_not_read_as_text(texts: Path, tmp_path: Path) -> None:
    """Otherwise its tokenizer.json would become training text."""
    folder = made(texts, tmp_path / "text" / "tokens").path
    with pytest.raises(
        UserError,
        match=r"tokens: this is a data folder, which has tokens instead of text; use it directly as data\.path",
    ):
        prepare([str(tmp_path / "text")], tmp_path / "new", vocab_size=300, held_out=0.2)
    (folder / "manifest.json").unlink()
    for source in (folder, folder.parent, f"{folder}/*"):
        with pytest.raises(
            UserError, match=r"tokens: the folder has token shards but no manifest\.json; copy the folder again, or"
        ):
            open_data(DataConfig(path=str(source)), 300)


def test_what_was_left_out_is_in_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Omissions are printed when the folder is made. Reading the same file differently gives other data."""
    lines = [json.dumps({"title": f"T{i}", "text": f"text {i}\n" * 9}) for i in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "no JSON"]))
    command = ["data", str(tmp_path / "a.jsonl"), "--vocab-size", "300", "--out", str(tmp_path / "out")]
    assert app.main(command) == 2
    assert "a.jsonl, line 31: not valid JSON\n`archlab data --skip-invalid` leaves" in capsys.readouterr().err
    assert app.main([*command, "--skip-invalid"]) == 0
    said = capsys.readouterr()
    assert "note: left out: 1 invalid\n" in said.err
    assert "line 31: not valid JSON" in said.err
    assert said.out.splitlines()[0].endswith("; left out: 1 invalid")
    manifest = DataFolder.open(tmp_path / "out").manifest
    assert (manifest.invalid, manifest.left_out) == (1, (f"{tmp_path / 'a.jsonl'}, line 31: not valid JSON",))
    assert app.main([*command, "--skip-invalid", "--template", r"{title}\n{text}"]) == 2
    assert "already contains other data" in capsys.readouterr().err
    command[-1] = str(tmp_path / "joined")
    assert app.main([*command, "--skip-invalid", "--template", r"{title}\n{text}"]) == 0
    joined = DataFolder.open(tmp_path / "joined").manifest
    assert joined.source.endswith(r"a.jsonl (template '{title}\n{text}')")
    extra = sum(len(f"T{i}\n") for i in range(30))
    assert sum(p.bytes for p in joined.parts) == sum(p.bytes for p in manifest.parts) + extra
    assert app.main([*command, "--field", "text", "--template", "{text}"]) == 2
    assert "--field and --template cannot be combined" in capsys.readouterr().err
