"""Folders that an earlier version wrote: this version opens, evaluates, reports and continues them.

`tests/folders/COMMIT` holds a run, a study and a text that the code of that commit wrote. The expected numbers are those
that it printed. Never change these files: if a change of the code breaks a test here, users' folders break, too.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import archlab
from archlab.cli import app
from archlab.config.core.yaml_text import read_yaml, to_yaml

FOLDERS = Path(__file__).parents[1] / "folders"


@pytest.fixture(params=sorted(path.name for path in FOLDERS.iterdir()))
def old(request, tmp_path, monkeypatch) -> Path:
    """A copy of one version's folders, as the current folder.

    They were written on a CPU that computes in float32.
    """
    monkeypatch.setattr("archlab.training.device._cpu_gains_by_bfloat16", lambda: False)
    shutil.copytree(FOLDERS / request.param, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def stored(file: Path) -> dict:
    return json.loads(file.read_text())


@pytest.mark.parametrize("gains", [False, True])
def test_a_run_is_evaluated_as_its_version_evaluated_it(gains, old, own_cache, capsys, monkeypatch):
    """Also on a CPU that gains by bfloat16, because the run records its dtype."""
    monkeypatch.setattr("archlab.training.device._cpu_gains_by_bfloat16", lambda: gains)
    assert app.main(["eval", "run", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["bits_per_byte"] == pytest.approx(stored(old / "run" / "summary.json")["bits_per_byte"], rel=1e-5)


def test_a_model_is_loaded_and_generates(old):
    model = archlab.from_pretrained("run")
    assert sum(p.numel() for p in model.parameters()) == stored(old / "run" / "summary.json")["parameters"]
    assert archlab.generate(model, torch.tensor([[1, 2]]), max_new_tokens=3, temperature=0.0).shape == (1, 5)


def test_a_finished_run_is_not_trained_again(old, own_cache):
    """The name of a run is a digest of its config, so the config still means the same."""
    before = (old / "run" / "metrics.jsonl").read_bytes()
    summary = archlab.train(archlab.load_config("run"), out="run")
    assert summary.bits_per_byte == stored(old / "run" / "summary.json")["bits_per_byte"]
    assert (old / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_has_curves(old):
    assert app.main(["report", "run"]) == 0
    assert (old / "run" / "report.html").is_file()


def test_a_study_has_the_same_results(old):
    rows = {(row["arm"], row["seed"]): row["accuracy"] for row in archlab.load_study("study").frame()}
    lines = [line.split(",") for line in (old / "study" / "runs.csv").read_text().splitlines()]
    place = {name: position for position, name in enumerate(lines[0])}
    expected = {(line[0], int(line[1])): float(line[place["accuracy"]]) for line in lines[1:]}
    assert rows == expected
    assert len(rows) == 4


def test_a_study_in_another_dtype_is_not_trained_again_without_a_word(old, own_cache, capsys, monkeypatch):
    monkeypatch.setattr("archlab.training.device._cpu_gains_by_bfloat16", lambda: True)
    summary, runs = (old / "study" / "summary.json").read_bytes(), sorted((old / "study" / "runs").iterdir())
    assert app.main(["study", "run", "study"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "its finished runs have float32, but train.dtype: auto is bfloat16 on this machine" in message
    assert "and use `archlab study run study`" in message
    assert (old / "study" / "summary.json").read_bytes() == summary
    assert sorted((old / "study" / "runs").iterdir()) == runs
    study = old / "study" / "study.yaml"
    values = read_yaml(study)
    study.write_text(to_yaml(values | {"set": {**values.get("set", {}), "train.dtype": "float32"}}))
    assert app.main(["study", "run", "study"]) == 0
    assert sorted((old / "study" / "runs").iterdir()) == runs


def test_a_study_is_continued_without_training_a_run_again(old, own_cache, capsys):
    before = {file: file.stat().st_mtime_ns for file in (old / "study" / "runs").rglob("metrics.jsonl")}
    verdict = stored(old / "study" / "summary.json")["arms"][1]["comparison"]
    assert app.main(["study", "run", "study"]) == 0
    assert "layernorm is not" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in (old / "study" / "runs").rglob("metrics.jsonl")} == before
    again = stored(old / "study" / "summary.json")["arms"][1]["comparison"]
    assert again["difference"] == verdict["difference"]
    assert again["p"] == pytest.approx(verdict["p"])


def test_a_run_whose_text_is_gone_says_how_to_name_it(old, capsys):
    shutil.move(old / "text", old / "elsewhere")
    assert app.main(["eval", "run"]) == 2
    message = capsys.readouterr().err
    assert "text: no such file or folder" in message
    assert "archlab eval run data.path=FOLDER" in message
    assert app.main(["eval", "run", "data.path=elsewhere"]) == 0
