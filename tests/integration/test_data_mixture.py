"""Mixtures: exact shares after any number of samples, and the same windows as for each source by itself."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archlab.config.paths import resolve_text_paths
from archlab.config.problems import ConfigError
from archlab.config.schema import DataConfig, MixtureSource
from archlab.data.open import open_training_data, tokens_per_byte
from archlab.data.prepare import prepare
from archlab.data.shards import DataFolder
from archlab.data.text_data import TextData, TextSource, distribute_samples
from archlab.errors import UserError
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary
from archlab.training.train import train
from scores import score
from tiny import config as tiny

WORDS = {"prose": "the cat sat on a mat and saw one dog", "code": "if x: return y + [f(z) for z in x]"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, DataFolder]:
    """Two texts with the same tokenizer. One is four times as long as the other."""
    made: dict[str, DataFolder] = {}
    for name, lines in (("prose", 2000), ("code", 500)):
        (tmp_path / name).mkdir()
        for i in range(50):
            text = "".join(f"{WORDS[name]} {i * j}\n" for j in range(lines // 50))
            (tmp_path / name / f"{i}.txt").write_text(text)
        known = made["prose"].path / "tokenizer.json" if made else None
        made[name] = prepare(
            [str(tmp_path / name)],
            tmp_path / f"{name}-tokens",
            vocab_size=None if made else 300,
            tokenizer=known,
            held_out=0.1,
        )
    return made


def mixed(folders: dict[str, DataFolder], **weights: float) -> TextData:
    return TextData([TextSource(name, folders[name], weight) for name, weight in sorted(weights.items())])


def config_of(folders: dict[str, DataFolder], **weights: float) -> DataConfig:
    return DataConfig(mixture={n: MixtureSource(path=str(folders[n].path), weight=w) for n, w in weights.items()})


def as_seats(weights: list[int], n: int) -> list[int]:
    """The Sainte-Lague method with integers, one seat at a time."""
    counts, given = [0] * len(weights), []
    for _ in range(n):
        best = max(range(len(weights)), key=lambda k: (Fraction(weights[k], 2 * counts[k] + 1), -k))
        counts[best] += 1
        given.append(best)
    return given


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_samples_are_shared_out_like_seats(weights: list[int]) -> None:
    expected = as_seats(weights, 120)
    source, number = distribute_samples(weights, range(120))
    assert source.tolist() == expected
    for k in range(len(weights)):
        assert number[source == k].tolist() == list(range(expected.count(k)))


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=7),
    st.integers(0, 10**11),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_any_part_is_that_of_the_whole(weights: list[float], first: int, parts: list[int]) -> None:
    """No sample is left out or repeated, wherever batches begin. Each source has had its share of all earlier samples."""
    whole = distribute_samples(weights, range(first, first + sum(parts)))
    assert all(len(found) == sum(parts) for found in whole)
    at, found = first, []
    for part in parts:
        found.append(distribute_samples(weights, range(at, at + part)))
        at += part
    for one, pieces in zip(whole, zip(*found, strict=True), strict=True):
        np.testing.assert_array_equal(one, np.concatenate(pieces))
    for k, weight in enumerate(weights):
        numbers = whole[1][whole[0] == k]
        np.testing.assert_array_equal(np.diff(numbers), 1)
        places = first + np.flatnonzero(whole[0] == k)
        share = weight / math.fsum(weights)
        assert (np.abs(numbers - places * share) <= 1 + share * len(weights) / 2 + 1e-3).all()


def test_shares_are_kept_over_any_stretch(folders: dict[str, DataFolder]) -> None:
    data = mixed(folders, prose=0.7, code=0.3)
    ends = [data.sources[n].folder.train for n in range(2)]
    whole = np.concatenate([data.windows(3, step, 8, 16).tokens for step in range(60)])
    rows = {row.tobytes() for start in range(len(ends[0]) - 17) for row in [ends[0].read(start, start + 17)]}
    is_code = np.array([row.tobytes() in rows for row in whole])
    shares = np.array([is_code[at : at + 100].sum() for at in range(380)])
    assert (np.abs(shares - 30) <= 2).all()


def test_each_source_is_read_as_if_it_were_alone(folders: dict[str, DataFolder]) -> None:
    """This also holds across the ends of epochs, and for a mixture of one source."""
    data = mixed(folders, prose=2.0, code=1.0)
    windows = np.concatenate([data.windows(5, step, 6, 32).tokens for step in range(300)])
    source, _ = distribute_samples([1.0, 2.0], range(1800))
    for n, name in enumerate(("code", "prose")):
        alone = TextData([TextSource(name, folders[name])])
        expected = np.concatenate([alone.windows(5, step, 1, 32).tokens for step in range((source == n).sum())])
        np.testing.assert_array_equal(windows[source == n], expected)
    assert data.passes(300, 6, 32)["code"] > 1


def test_held_out_text_is_in_the_same_shares(folders: dict[str, DataFolder]) -> None:
    data = mixed(folders, prose=3.0, code=1.0)
    folds = [source.folder.held_out for source in data.sources]
    found = data.held_out(16, 16 * 40)
    assert found.tokens.shape == (40, 17)
    for fold, rows in zip(folds, (found.tokens[:10], found.tokens[10:]), strict=True):
        whole = fold.read(0, len(fold)).tolist()
        assert all(row in [whole[i : i + 17] for i in range(len(whole) - 16)] for row in rows.tolist())
    every = data.held_out(16, None)  # until the first source has no more windows
    counts = [len(TextData([source]).held_out(16, None).tokens) for source in data.sources]
    assert len(every.tokens) == pytest.approx(min(counts[0] * 4, counts[1] * 4 / 3), abs=3)
    assert every.documents is not None
    assert every.documents[0, 0] == 0
    assert set(np.diff(every.documents.ravel()).tolist()) == {0, 1}
    assert len(data.beginnings(every)) == every.documents.max() + 1


def test_the_fingerprint_is_of_texts_and_weights(folders: dict[str, DataFolder]) -> None:
    found = [
        open_training_data(config, 300).fingerprint
        for config in (
            config_of(folders, prose=2, code=1),
            config_of(folders, code=1, prose=2),
            config_of(folders, prose=2, code=1.5),
            config_of(folders, prose=2),
            DataConfig(path=str(folders["prose"].path)),
        )
    ]
    assert found[0] == found[1]
    assert len({*found}) == 3
    assert found[3] == found[4] == folders["prose"].fingerprint


def test_tokens_per_byte_are_those_of_what_is_read(folders: dict[str, DataFolder]) -> None:
    mixture = config_of(folders, prose=1, code=3)
    alone = {n: tokens_per_byte(DataConfig(path=str(folders[n].path)), 300) for n in folders}
    expected = 4 / (1 / alone["prose"] + 3 / alone["code"])
    assert tokens_per_byte(mixture, 300) == pytest.approx(expected, rel=1e-12)


def test_another_tokenizer_is_refused(folders: dict[str, DataFolder], tmp_path: Path) -> None:
    other = prepare([str(tmp_path / "code")], tmp_path / "other", vocab_size=290, held_out=0.1)
    with pytest.raises(
        UserError, match=r"data\.mixture\.prose\.path: .* a different tokenizer than code; .*--tokenizer"
    ):
        open_training_data(config_of(folders | {"code": other}, prose=1, code=1), 300)
    text = DataConfig(mixture={"a": MixtureSource(path=str(tmp_path / "code"))})
    with pytest.raises(UserError, match=r"data\.mixture\.a\.path: .*code is not a data folder"):
        open_training_data(text, 300)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.mixture.a.weight=0", r"data\.mixture\.a\.weight"),
        ("data.mixture.a.share=1", r"data\.mixture\.a\.share"),
        ("data.path=elsewhere", r"data\.path  elsewhere, but data\.mixture"),
        ("data.task=recall", r"data\.mixture  a and data\.task = recall; allowed: one of the two"),
    ],
)
def test_what_a_mixture_cannot_be(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tiny("data.mixture={a: {path: somewhere}}", override)
    assert tiny("data.mixture={a: {path: somewhere}}", "data.mixture=null", "data.path=elsewhere").data.mixture == {}


def test_a_source_keeps_its_path_if_its_weight_changes() -> None:
    config = tiny("data.mixture={a: {path: somewhere}, b: {path: there}}", "data.mixture.a.weight=3")
    assert config.data.mixture["a"] == MixtureSource(path="somewhere", weight=3)
    assert config.data.mixture["b"] == MixtureSource(path="there")


@pytest.mark.parametrize(
    "values",
    [
        {"data": {"mixture": {"a": {"path": "tokens"}}}},
        {"data.mixture.a.path": "tokens"},
        {"data.mixture": {"a": {"path": "tokens"}}},
        {"data": {"mixture.a": {"path": "tokens"}}},
    ],
)
def test_sources_lie_beside_the_file_that_names_them(values: dict, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    resolve_text_paths(values, tmp_path)
    assert str(tmp_path / "tokens") in str(values)


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


class Stop(Callback):
    def on_step(self, metrics: object) -> None:
        raise KeyboardInterrupt


def trained(folders: dict[str, DataFolder], out: Path, callback: Callback, *overrides: str) -> RunSummary:
    mixture = ", ".join(f"{name}: {{path: '{folder.path}'}}" for name, folder in folders.items())
    return train(tiny(f"data.mixture={{{mixture}}}", "train.checkpoint_every=1", *overrides), out, callback)


@pytest.mark.parametrize("packed", ["false", "true"])
def test_a_run_of_a_mixture_goes_on_as_if_it_had_never_stopped(
    folders: dict[str, DataFolder], tmp_path: Path, packed: str
) -> None:
    mask, notes = f"train.document_mask={packed}", Notes()
    whole = trained(folders, tmp_path / "whole", notes, mask)
    with pytest.raises(KeyboardInterrupt):
        trained(folders, tmp_path / "cut", Stop(), mask)
    moved = {name: DataFolder.open(folder.path.rename(tmp_path / f"moved-{name}")) for name, folder in folders.items()}
    assert trained(moved, tmp_path / "cut", notes, mask).bits_per_byte == whole.bits_per_byte
    losses = [[line.get("loss") for line in RunFolder(tmp_path / n).metrics()] for n in ("whole", "cut")]
    assert losses[0] == losses[1]
    assert not [note for note in notes.notes if "is read" in note]
    with pytest.raises(UserError, match=r"data\.mixture\.code\.weight: 1\.0 in the folder, 2\.0 in the new config"):
        trained(moved, tmp_path / "cut", notes, mask, "data.mixture.code.weight=2")
    there = tuple(f"data.mixture.{name}.path={folder.path}" for name, folder in moved.items())
    own = score(str(tmp_path / "cut"), there, 256)
    assert own.bits_per_byte == whole.bits_per_byte
    alone = score(str(tmp_path / "cut"), ("data.mixture=null", f"data.path={moved['code'].path}"), 256)
    assert alone.bits_per_byte != own.bits_per_byte


def test_a_source_that_is_read_too_often_is_noted(folders: dict[str, DataFolder], tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    for i in range(20):
        (tmp_path / "short" / f"{i}.txt").write_text(f"{WORDS['code']} {i}\n" * 3)
    known = folders["prose"].path / "tokenizer.json"
    short = prepare([str(tmp_path / "short")], tmp_path / "short-tokens", tokenizer=known, held_out=0.1)
    notes, steps = Notes(), math.ceil(9.2 * len(short.train) / 64)
    trained({"prose": folders["prose"], "short": short}, tmp_path / "run", notes, f"train.tokens={steps * 64}",
            "train.eval_every=10000", "train.checkpoint_every=10000", "model.n_layers=1")  # fmt: skip
    [note] = [note for note in notes.notes if "is read" in note]
    assert note.startswith("short is read 4.")
