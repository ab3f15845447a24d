"""What a person uses from Python."""

from pathlib import Path

import pytest
import sample_study
import tiny

import archlab
import archlab.cost.params as counted
from archlab.errors import UserError
from archlab.train import loop
from archlab.train.run_folder import RunFolder


def test_cost_and_train_are_packages_and_functions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    config = tiny.config(data=tiny.write_text(tmp_path))
    assert archlab.cost(config).parameters == counted.parameters(config.model)
    run = archlab.train(config, out=str(tmp_path / "run"))
    assert run == RunFolder(tmp_path / "run").summary()
    monkeypatch.setattr(loop, "_train", None)
    assert archlab.train(config, tmp_path / "run") == run, "a finished run is only read"


def test_a_study_is_read_as_rows(tmp_path: Path) -> None:
    study = sample_study.diverging_ladder()
    (tmp_path / "summary.json").write_text(study.model_dump_json())
    rows = archlab.load_study(tmp_path).frame()
    assert [(row["arm"], row["seed"]) for row in rows] == [(arm, s) for arm in sample_study.LADDER for s in (0, 1, 2)]
    rope = [row for row in rows if row["label"] == "RoPE"]
    assert [row["bits_per_byte"] is None for row in rope] == [False, True, False]
    assert rope[0]["bits_per_byte"] == study.arms[4].values[0]
    assert rope[0]["parameters"] == study.arms[4].parameters


def test_no_study_to_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"summary\.json: missing; `archlab study run`"):
        archlab.load_study(tmp_path)
    (tmp_path / "summary.json").write_text('{"name": 1}')
    with pytest.raises(UserError, match="damaged, or written by another version of archlab"):
        archlab.load_study(str(tmp_path))
