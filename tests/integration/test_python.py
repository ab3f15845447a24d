"""The public functions of archlab in Python."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import archlab
import archlab.pricing.params as counted
import sample_study
import tiny
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.study.executors.local import Local
from archlab.study.schema import StudyConfig
from archlab.study.study_file import study_from_values
from archlab.training import train as loop
from archlab.training.run_folder import RunFolder


def test_cost_and_train_are_packages_and_functions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    config = tiny.config(data=tiny.write_text(tmp_path))
    assert archlab.cost(config).parameters == counted.parameters(config.model)
    run = archlab.train(config, out=str(tmp_path / "run"))
    assert run == RunFolder(tmp_path / "run").summary()
    monkeypatch.setattr(loop, "Training", None)
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
    with pytest.raises(UserError, match=r"summary\.json is missing; `archlab study run`"):
        archlab.load_study(tmp_path)
    (tmp_path / "summary.json").write_text('{"name": 1}')
    with pytest.raises(UserError, match="is damaged, or another version of archlab wrote it"):
        archlab.load_study(str(tmp_path))


def values(tmp_path: Path, **changed: Any) -> dict[str, Any]:
    """Return a study of two arms and two seeds whose runs take a second each."""
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny.config(data=tiny.write_text(tmp_path)).model_dump(mode="json")))
    arms = {"silu": {}, "gelu": {"model.mlp.activation": "gelu"}}
    return {
        "question": "Which?", "base": str(tmp_path / "tiny.yaml"), "budget": {"tokens": 320}, "arms": arms, "seeds": 2,
    } | changed  # fmt: skip


def test_a_study_is_run_and_has_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Local, "run_all", tiny.run_here)
    monkeypatch.setattr("archlab.report.study.page.picture", lambda _: b"drawn")
    asked = values(tmp_path)
    summary = archlab.run_study({**asked, "seeds": 3}, tmp_path / "mine", workers=1, seeds=2)
    assert [len(arm.values) for arm in summary.arms] == [2, 2]
    assert capsys.readouterr().out == ""
    assert (summary.name, summary.failed) == ("mine", {})
    assert "Which?" in (tmp_path / "mine" / "report.html").read_text()
    assert (tmp_path / "mine" / "report.png").read_bytes() == b"drawn"
    monkeypatch.setattr(Local, "run_all", None)
    for name in ("write_page", "write_picture"):
        monkeypatch.setattr(f"archlab.report.study.run_study.{name}", lambda *_: None)
    (tmp_path / "same.yaml").write_text(to_yaml(asked))
    again = archlab.run_study(tmp_path / "same.yaml", tmp_path / "mine")
    assert again.arms == summary.arms, "finished runs are only read"
    assert archlab.run_study(StudyConfig.model_validate(asked), tmp_path / "mine").arms == summary.arms
    assert archlab.run_study(str(tmp_path / "mine")).arms == summary.arms, "a study folder goes on where it lies"
    assert "Which?" in asked["question"]
    assert archlab.load_study(tmp_path / "mine").arms == summary.arms


PLAIN = """
import json, sys
import archlab
print("begins")
study = json.loads(sys.argv[1])
summary = archlab.run_study(study, sys.argv[2], workers=1)
print(summary.failed, sorted(summary.others[0].arms))
"""


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    """Runs and timings use processes of their own. multiprocessing would run the script again in each of them."""
    asked = values(tmp_path, measure=["peak_memory"])
    (tmp_path / "plain.py").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, tmp_path / "plain.py", json.dumps(asked), tmp_path / "out"],
        capture_output=True,
        text=True,
        env={**os.environ, "ARCHLAB_CACHE": str(tmp_path / "cache")},
    )
    assert done.stdout == "begins\n{} ['gelu', 'silu']\n", done.stderr


def test_invalid_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="out: a study without a file needs a folder"):
        archlab.run_study(values(tmp_path))
    with pytest.raises(UserError, match=r"1 problem in the study\n +seeds +1; allowed: at least 2"):
        archlab.run_study(values(tmp_path, seeds=1), tmp_path / "out")
    with pytest.raises(UserError, match="workers: 0; allowed: at least 1"):
        archlab.run_study(values(tmp_path), tmp_path / "out", workers=0)
    with pytest.raises(UserError, match="threads: 0; allowed: at least 1"):
        archlab.run_study(values(tmp_path), tmp_path / "out", threads=0)
    with pytest.raises(UserError, match="scale: 'smoke'; only the name of a study or a study file can have a scale"):
        archlab.run_study(values(tmp_path), tmp_path / "out", scale="smoke")
    assert not (tmp_path / "out").exists()


def test_values_may_extend_a_study(tmp_path: Path) -> None:
    extending = study_from_values({"extends": "ladder", "question": "Which, with more?"})
    assert (extending.question, extending.base) == ("Which, with more?", "tiny-transformer")


@pytest.mark.parametrize(
    "call",
    [
        lambda: archlab.draw("tiny-llama"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.check("tiny-llama"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.diff(archlab.load_config("tiny-llama"), "gpt-2"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.train("tiny-llama", "out"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.training_speed("tiny-llama"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.decoding_speed("tiny-llama"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.profile("tiny-llama"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.coordinate_check("tiny-llama", [32, 64]),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_name_in_place_of_a_config_is_one_message(call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"is not a config; allowed: what archlab\.load_config returns"):
        call()


def test_a_name_in_place_of_a_model_is_one_message() -> None:
    for call in (
        lambda: archlab.generate("runs/a", "hello"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        lambda: archlab.fill("runs/a", "hello"),  # pyright: ignore[reportArgumentType]
        lambda: archlab.beam_search("runs/a", None),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UserError, match=r"is not a model; allowed: what archlab\.from_pretrained returns"):
            call()
    with pytest.raises(UserError, match="names no config"):
        archlab.load_config({"model": {}})  # pyright: ignore[reportArgumentType]
