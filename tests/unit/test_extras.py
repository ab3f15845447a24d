"""Extras: without its packages, each feature names the extra that it needs."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import archlab
from archlab.cli import app
from archlab.data.corpus import Corpus
from archlab.errors import UserError
from archlab.exchange.gguf.read import read_gguf
from archlab.exchange.gguf.write import save_gguf
from archlab.extras import EXTRAS
from archlab.infer.tasks import lm_eval
from archlab.study.executors.named import make_executor
from archlab.training import sinks
from tiny import config

EXTRAS_OF_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
FOR_CONTRIBUTORS = {"bench", "dev"}


def read(name: str) -> Callable[[Path], object]:
    def use(folder: Path) -> object:
        (folder / name).write_bytes(b"")
        return list(Corpus([str(folder)]))

    return use


def import_gguf(folder: Path) -> object:
    (folder / "a.gguf").write_bytes(b"")
    return read_gguf(folder / "a.gguf")


def write_gguf(folder: Path) -> object:
    with torch.device("meta"):
        model = archlab.Decoder(config().model, seed=None)
    return save_gguf(model, folder / "a.gguf")


def log_to(name: str) -> Callable[[Path], object]:
    return lambda _: sinks.check_installed([name])


USES: list[tuple[str, list[str], Callable[[Path], object]]] = [
    ("datasets", ["datasets"], lambda _: list(Corpus(["hf:some/data"]))),
    ("gguf", ["gguf"], import_gguf),
    ("gguf", ["gguf"], write_gguf),
    ("hub", ["huggingface_hub"], lambda _: archlab.from_pretrained("some/model")),
    ("lm-eval", ["lm_eval"], lambda _: lm_eval("runs/a", "piqa")),
    ("mlflow", ["mlflow"], log_to("mlflow")),
    ("parquet", ["pyarrow"], read("a.parquet")),
    ("parquet", ["pyarrow"], read("a.arrow")),
    ("ray", ["ray"], lambda _: make_executor("ray")),
    ("slurm", ["submitit"], lambda _: make_executor("slurm")),
    ("tensorboard", ["tensorboardX"], log_to("tensorboard")),
    ("trackio", ["trackio"], log_to("trackio")),
    ("wandb", ["wandb"], log_to("wandb")),
    ("zstd", ["pyarrow"], read("a.txt.zst")),
]
"""Extra, modules of its packages, and a use of a feature that imports them."""


def test_every_extra_has_a_feature_and_a_use():
    assert EXTRAS_OF_PROJECT.keys() - FOR_CONTRIBUTORS == EXTRAS.keys() == {extra for extra, *_ in USES}


@pytest.mark.parametrize(("extra", "modules", "use"), USES)
def test_without_its_packages_a_feature_names_its_extra(extra, modules, use, tmp_path, monkeypatch):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sinks, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"pip install 'archlab\[{extra}\]'$"):
        use(tmp_path)


def test_the_message_says_what_needs_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "a.gguf").write_bytes(b"")
    assert app.main(["import", str(tmp_path / "a.gguf"), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/a.gguf needs the extra `gguf` (")
