"""Studies whose arms begin from trained weights."""

import pytest

from archlab.config.check import validate
from archlab.data.open import open_data
from archlab.errors import UserError
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.training.run_folder import RunFolder
from tiny import MODEL, TRAIN, config

pytestmark = pytest.mark.usefixtures("shared_cache")
START = {"tokens": 1280, "set": {"train.schedule": "constant"}}
ARMS = {"mha": {}, "mqa": {"model.attention.n_kv_heads": 1}}


def study_of(home, start, text, arms=ARMS, **more) -> Study:
    fixed = {f"train.{name}": value for name, value in TRAIN.items() if name != "tokens"}
    values = {
        "question": "Do pooled heads recover?",
        "set": {"data.path": str(text), **fixed},
        "start": start,
        "arms": arms,
        "budget": {"tokens": 640},
        "seeds": 2,
        **more,
    }
    if not isinstance(start, str):
        values["base"] = "tiny-llama"
        values["set"]["model"] = MODEL
    return Study("pooled", validate(StudyConfig, values, "test"), home / "study")


def silent(runs):
    return lambda progress: None


def test_the_base_is_trained_once_and_all_arms_begin_from_it(tmp_path, text, trained_here):
    study = study_of(tmp_path, START, text)
    found = study.run(silent)
    assert trained_here == ["the base", "mha, seed 0", "mqa, seed 0", "mha, seed 1", "mqa, seed 1"]
    base = RunFolder(study.plan.start.folder(study.folder))
    first = {arm.name: [study.plan.compared(arm, seed) for seed in (0, 1)] for arm in study.arms}
    begun = [RunFolder(run.folder(study.folder)).metrics()[0]["held_out_loss"] for run in first["mha"]]
    assert begun == [base.summary().loss] * 2
    pooled = RunFolder(first["mqa"][0].folder(study.folder)).metrics()[0]["held_out_loss"]
    assert pooled != pytest.approx(base.summary().loss, rel=1e-4)
    assert [arm.name for arm in found.arms] == ["mha", "mqa"]
    trained_here.clear()
    study_of(tmp_path, START, text, seeds=3).run(silent)
    assert trained_here == ["mha, seed 2", "mqa, seed 2"]


def test_the_base_is_a_teacher(tmp_path, text, trained_here):
    """The base has no folder before the study runs, so no arm can name it."""
    arms = {"alone": {"train.teacher": None}, "same": {}, "mqa": {"model.attention.n_kv_heads": 1}}
    fixed = {f"train.{name}": value for name, value in TRAIN.items() if name != "tokens"}
    fixed |= {"data.path": str(text), "model": MODEL, "train.teacher": {"hidden": 0.1}, "train.z_loss": 1e-4}
    study = study_of(tmp_path, START, text, arms=arms, set=fixed)
    study.run(silent)
    assert study.plan.start.config.train.teacher is None
    runs = {arm.name: study.plan.compared(arm, 0) for arm in study.arms}
    first = {name: RunFolder(run.folder(study.folder)).metrics()[1] for name, run in runs.items()}
    assert "teacher_kl" not in first["alone"]
    assert first["same"]["teacher_kl"] == pytest.approx(0, abs=1e-6)
    assert first["mqa"]["teacher_kl"] > 1e-5
    assert first["mqa"]["teacher_distance"] > 1e-3
    assert len({run.name for run in runs.values()}) == 3


def test_a_run_is_named_after_its_weights(tmp_path, text):
    def name(start):
        study = study_of(tmp_path, start, text)
        return study.plan.compared(study.arms[0], 0).name

    names = [name(None), name(START), name({"tokens": 640})]
    assert len({*names}) == 3
    assert name(START) == names[1]


def test_a_folder_is_a_start(tmp_path, text, trained_here):
    from archlab.training.callback import Callback
    from archlab.training.train import train

    train(config(data=text), tmp_path / "run", Callback())
    study = study_of(tmp_path, str(tmp_path / "run"), text)
    named = study.plan.compared(study.arms[0], 0).name
    study.run(silent)
    assert "the base" not in trained_here
    first = RunFolder(study.plan.compared(study.arms[0], 0).folder(study.folder))
    assert first.metrics()[0]["held_out_loss"] == RunFolder(tmp_path / "run").summary().loss
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = study_of(tmp_path, str(tmp_path / "moved"), text)
    assert moved.plan.compared(moved.arms[0], 0).name == named


def test_the_base_has_read_no_fold_on_which_the_study_evaluates(tmp_path, text, trained_here):
    study = study_of(tmp_path, START, text, folds=2, tune={"train.lr": [1e-3, 2e-3]})
    study.run(silent)
    n_folds = study.corpora["mha"].n_folds
    assert n_folds > 3
    compared = [study.plan.compared(arm, seed) for arm in study.arms for seed in (0, 1)]
    evaluated = {run.config.data.fold for run in (*study.plan.all_tuning(), *compared)}
    assert evaluated == {0, 1, n_folds - 1}
    base = open_data(study.plan.start.config.data, MODEL["vocab_size"])
    unread = sum(base.manifest.folds[fold].tokens for fold in evaluated)
    assert len(base.train) == sum(part.tokens for part in base.manifest.parts) - unread


def test_a_folder_that_has_read_the_fold_of_tuning_is_refused_before_any_run(tmp_path, text, trained_here):
    from archlab.training.callback import Callback
    from archlab.training.train import train

    train(config(data=text), tmp_path / "run", Callback())
    tuned = {"tune": {"train.lr": [1e-3, 2e-3]}}
    study = study_of(tmp_path, str(tmp_path / "run"), text, **tuned)
    last = study.corpora["mha"].n_folds - 1
    with pytest.raises(UserError, match=rf"start: .*run was trained on fold {last} of the text"):
        study.run(silent)
    assert not trained_here
    train(config(f"data.excluded_folds=[{last}]", data=text), tmp_path / "unread", Callback())
    study_of(tmp_path / "b", str(tmp_path / "unread"), text, **tuned).run(silent)
    assert trained_here


@pytest.mark.parametrize(
    ("arms", "more", "words"),
    [
        ({"a": {}, "b": {"model.mlp.d_ff": 72}}, {}, "arms.b  "),
        ({"a": {}, "b": {"model.vocab_size": 320}}, {}, "arms.b.model.vocab_size"),
        (ARMS, {"set": {"data.excluded_folds": [3]}}, "set.data.excluded_folds"),
        (
            {"a": {}, "b": {"model.n_layers": 1, "train.start_layers": [1], "train.teacher": {"hidden": 1}}},
            {},
            "arms.b.train.teacher.path  start has n_layers = 2, but model.n_layers is 1",
        ),
        ({"a": {}, "b": {"train.teacher": {}}}, {"start": None}, "arms.b.train.teacher.path  null, and so is"),
        (ARMS, {"start": {"tokens": 1280, "set": {"train.seed": 3}}}, "start.set.train.seed"),
        (ARMS, {"start": "nowhere"}, "\n  start  nowhere: no such file or folder"),
    ],
)
def test_what_cannot_begin_from_the_weights_is_refused(tmp_path, text, arms, more, words):
    with pytest.raises(UserError) as error:
        study_of(tmp_path, **{"start": START, "text": text, "arms": arms, **more})
    assert words in str(error.value)
