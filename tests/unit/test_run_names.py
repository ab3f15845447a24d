"""Names of runs do not change, so a new version never repeats a finished run of a study that comes with archlab.

`python tests/unit/test_run_names.py` records the names of new studies. A changed name means that all finished runs of
the arm are lost; docs/notebook.md then gives the reason.
"""

import json
from pathlib import Path

import pytest
import torch

from archlab.config.identity import config_hash
from archlab.config.io import studies
from archlab.exchange.configs import load_config
from archlab.study import runs
from archlab.study.arm import Arm
from archlab.study.design import arms
from archlab.study.runs import Run
from archlab.study.schema import Budget, StudyConfig
from archlab.study.study_file import library_study, scales_of
from archlab.training.device import Device

RECORD = Path(__file__).parent / "run_names.json"


def designed(study: StudyConfig) -> list[Arm]:
    """Return the arms. A budget in bytes of text counts as the same number of tokens, so that no text is read."""
    n_bytes = study.budget.bytes
    return arms(study if n_bytes is None else study.model_copy(update={"budget": Budget(tokens=n_bytes)}))


def names(study: str) -> dict[str, dict[str, str]]:
    """Return scale -> arm -> name of its first run, as if all runs read the same text in float32."""
    return {
        scale: {
            arm.name: Run("", arm.seeded(0, 0), "text", threads=1).name for arm in designed(library_study(study, scale))
        }
        for scale in scales_of(study)
    }


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "planned_device", lambda train: Device("cpu", torch.float32))


@pytest.mark.parametrize("study", studies())
def test_runs_of_a_study_keep_their_names(study: str) -> None:
    assert names(study) == json.loads(RECORD.read_text())[study]


def test_a_new_field_at_its_default_adds_nothing_to_a_name_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that `sub_norm` was just added to every MLP."""
    config = load_config("tiny-llama")
    before = Run("", config, "text", threads=1).name
    plain = []
    monkeypatch.setattr(runs, "config_hash", lambda decides: plain.append(decides) or config_hash(decides))
    monkeypatch.setattr(runs, "_NEW_FIELDS", (*runs._NEW_FIELDS, ("model.mlp.sub_norm", False)))
    assert Run("", config, "text", threads=1).name != before
    assert "sub_norm" not in plain[0]["model"]["mlp"]
    assert "sub_norm" in plain[0]["model"]["attention"]  # another field with this name
    changed = load_config("tiny-llama", "model.mlp.sub_norm=true")
    _ = Run("", changed, "text", threads=1).name  # computed on first access
    assert plain[1]["model"]["mlp"]["sub_norm"] is True


if __name__ == "__main__":
    runs.planned_device = lambda train: Device("cpu", torch.float32)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    RECORD.write_text(json.dumps({study: known.get(study) or names(study) for study in studies()}, indent=1) + "\n")
