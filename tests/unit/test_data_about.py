"""Description of a run's data: names, bytes and folds, without encoding any text."""

from pathlib import Path

import pytest

import tiny
from archlab.config.schema import DataConfig
from archlab.config.tasks.recall import Recall
from archlab.data.open import AboutText, about_data, open_training_data
from archlab.data.prepare import prepare
from archlab.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_text_is_counted_in_bytes_and_in_the_folds_that_its_tokens_have(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        tiny.write_text(folder, f"{number}é.txt", lines=20)
    (folder / "accents.txt").write_text("é" * 100)
    n_bytes = sum(len(file.read_bytes()) for file in folder.iterdir())
    for path, short in ((str(folder), "texts"), (f"{folder}/*.txt", "texts/*.txt")):
        config = DataConfig(path=path, held_out=0.1)
        about = about_data(config)
        assert isinstance(about, AboutText)
        assert (about.names, about.bytes) == ((path,), n_bytes)
        assert not (cache / "data").exists()
        assert about.n_folds == open_training_data(config, 300).n_folds == 10
        assert about.short() == f"{short} ({n_bytes / 1000:.3g} kB in 10 folds)"
        for made in (cache / "data").iterdir():
            made.rename(tmp_path / f"away{len(list(tmp_path.iterdir()))}")
        (cache / "data").rmdir()


def test_data_folders_and_mixtures_of_them(tmp_path: Path) -> None:
    for name, lines in (("a", 300), ("b", 500)):
        prepare([str(tiny.write_text(tmp_path, f"{name}.txt", lines))], tmp_path / name, vocab_size=300, held_out=0.2)
    sizes = [(tmp_path / f"{name}.txt").stat().st_size for name in "ab"]
    alone = about_data(DataConfig(path=str(tmp_path / "b")))
    assert str(alone) == f"text: {tmp_path / 'b'}, {sizes[1] / 1000:.3g} kB in 4 folds"
    mixture = {name: {"path": str(tmp_path / name)} for name in "ba"}
    both = about_data(DataConfig.model_validate({"mixture": mixture}))
    assert both.short() == f"a and b ({sum(sizes) / 1000:.3g} kB in 4 folds)"


def test_a_task_and_the_text_that_every_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert about_data(DataConfig(task=Recall())).short() == "the task recall"
    name = AboutText(names=("python-stdlib 3.11.4",), bytes=25_600_000, n_folds=1).short()
    assert name == "python-stdlib 3.11.4 (25.6 MB in 1 fold)"
    assert AboutText(names=("hf:org/texts",), bytes=1, n_folds=2).short() == "hf:org/texts (1 B in 2 folds)"


def test_text_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        about_data(DataConfig(path=str(tmp_path / "nowhere")))
