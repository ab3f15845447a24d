"""Ended runs of a study that are kept as lines (benchmarks/sittings.py)."""

import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import archlab
from archlab.config.check import validate
from archlab.errors import UserError
from archlab.files import RUNS
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from tiny import MODEL, TRAIN

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def sittings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(archlab.__file__).parents[2] / "benchmarks")
    return import_module("sittings")


def study_in(folder: Path, text: Path, **more) -> Study:
    fixed = {f"train.{name}": value for name, value in TRAIN.items() if name != "tokens"}
    values = {
        "question": "Which norm?",
        "base": "tiny-llama",
        "set": {"data.path": str(text), "model": MODEL, **fixed},
        "arms": {"rms": {}, "layer": {"model.norm.kind": "layernorm"}},
        "budget": {"tokens": 640},
        **more,
    }
    return Study("norms", validate(StudyConfig, values, "test"), folder)


def silent(runs):
    return lambda progress: None


def test_a_study_resumes_from_lines(tmp_path, text, sittings, trained_here):
    first, lines, later = tmp_path / "first", tmp_path / "runs.jsonl", tmp_path / "later"
    whole = study_in(first, text, seeds=3).run(silent)
    unfinished = next(run for run in (first / RUNS).iterdir() if Path(whole.arms[1].runs[2]).name == run.name)
    (unfinished / "summary.json").unlink()
    sittings.keep(first, lines)
    assert len(lines.read_text().splitlines()) == 1 + 5

    sittings.restore(lines, later)
    trained_here.clear()
    resumed = study_in(later, text, seeds=3).run(silent)
    assert trained_here == ["layer, seed 2"]
    assert [arm.values for arm in resumed.arms] == [arm.values for arm in whole.arms]
    assert [arm.comparison for arm in resumed.arms] == [arm.comparison for arm in whole.arms]


def test_a_study_with_other_outcomes_is_not_kept(tmp_path, text, sittings, trained_here):
    """They may need the whole logs or the final weights, which the lines do not have."""
    study_in(tmp_path / "study", text, seeds=2, measure=["training_speed"]).run(silent)
    with pytest.raises(UserError, match="measure"):
        sittings.keep(tmp_path / "study", tmp_path / "runs.jsonl")


def test_an_existing_folder_is_not_overwritten(tmp_path, text, sittings, trained_here):
    study_in(tmp_path / "study", text, seeds=2).run(silent)
    sittings.keep(tmp_path / "study", tmp_path / "runs.jsonl")
    with pytest.raises(UserError, match="exists"):
        sittings.restore(tmp_path / "runs.jsonl", tmp_path / "study")
    shutil.rmtree(tmp_path / "study")
    sittings.restore(tmp_path / "runs.jsonl", tmp_path / "study")
