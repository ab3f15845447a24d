"""Runs with a teacher: they resume exactly, know the teacher by its weights, and refuse one that cannot teach them."""

import json
import re
import shutil

import numpy as np
import pytest

from archlab.cli import app
from archlab.config.problems import ConfigError
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.study.runs import Run
from archlab.training import device
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import Killed, config, losses, write_text

pytestmark = pytest.mark.usefixtures("shared_cache")
EVERY_LOSS = ("train.teacher.temperature=2", "train.teacher.hidden=0.1", "train.teacher.objective=0.5")


@pytest.fixture(scope="module")
def home(text, tmp_path_factory):
    """Folder with two trained teachers, and the first one as a Hugging Face folder."""
    home = tmp_path_factory.mktemp("teachers")
    train(config("train.lr=0.01", data=text), home / "teacher", Callback())
    train(config("train.lr=0.01", "train.seed=1", data=text), home / "other", Callback())
    assert app.main(["export", str(home / "teacher"), "--out", str(home / "hf")]) == 0
    return home


def distilled(home, text, *overrides, teacher="teacher"):
    return config(f"train.teacher.path={home / teacher}", *EVERY_LOSS, *overrides, data=text)


def of_teacher(run):
    lines = [line for line in RunFolder(run).metrics() if "lr" in line]
    return [(line["teacher_kl"], line["teacher_distance"]) for line in lines]


def test_a_killed_run_resumes_exactly(home, text, tmp_path):
    """Dropout is on, so a random number that the teacher drew would change the losses."""
    cfg = distilled(home, text, "train.checkpoint_every=5", "model.dropout.branch=0.1")
    whole = train(cfg, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(cfg, tmp_path / "killed", Killed())
    assert train(cfg, tmp_path / "killed", Callback()).bits_per_byte == whole.bits_per_byte
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert of_teacher(tmp_path / "killed") == of_teacher(tmp_path / "whole")
    assert len(of_teacher(tmp_path / "whole")) == 10


def test_a_student_that_begins_from_its_teacher_has_nothing_to_learn_from_it(home, text, tmp_path):
    train(distilled(home, text, f"train.start={home / 'teacher'}", "train.lr=0.01"), tmp_path / "run", Callback())
    (first_kl, first_distance), *_, (last_kl, last_distance) = of_teacher(tmp_path / "run")
    assert first_kl == pytest.approx(0, abs=1e-6)
    assert first_distance == 0
    assert last_kl > 1e-5  # the objective moves the student away
    assert last_distance > 0


def test_without_a_path_the_teacher_is_the_start(home, text, tmp_path):
    start = f"train.start={home / 'teacher'}"
    explicit, implicit = distilled(home, text, start), config(start, *EVERY_LOSS, "train.checkpoint_every=5", data=text)
    train(explicit, tmp_path / "explicit", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(implicit, tmp_path / "implicit", Killed())
    train(implicit, tmp_path / "implicit", Callback())
    assert of_teacher(tmp_path / "implicit") == of_teacher(tmp_path / "explicit")
    assert losses(tmp_path / "implicit") == losses(tmp_path / "explicit")
    assert Run("", implicit, "text", threads=1).name == Run("", explicit, "text", threads=1).name
    other = config(f"train.start={home / 'other'}", *EVERY_LOSS, data=text)
    assert Run("", other, "text", threads=1).name != Run("", explicit, "text", threads=1).name


def test_a_run_that_begins_from_a_distilled_one_keeps_its_teacher(home, text, tmp_path):
    implicit = config(f"train.start={home / 'teacher'}", *EVERY_LOSS, data=text)
    train(implicit, tmp_path / "run", Callback())
    following = load_config(tmp_path / "run", f"train.start={tmp_path / 'run'}").train
    assert (following.start, following.teacher.path) == (str(tmp_path / "run"), str(home / "teacher"))
    (tmp_path / "file.yaml").write_text((tmp_path / "run" / "config.yaml").read_text())
    assert load_config(tmp_path / "file.yaml", f"train.start={home / 'other'}").train.teacher.path is None


def test_random_weights_have_no_teacher(text, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.teacher\.path +null, and so is train.start, whose weights would"):
        train(config(*EVERY_LOSS, data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()


def test_the_student_approaches_its_teacher(home, text, tmp_path):
    """Without the objective, the student learns only from the teacher. The log has the plain cross-entropy."""
    cfg = distilled(home, text, "train.teacher.objective=0", "train.tokens=2560", "train.lr=0.01")
    train(cfg, tmp_path / "run", Callback())
    first, last = (of_teacher(tmp_path / "run")[i] for i in (0, -1))
    assert last[0] < first[0] / 2
    assert last[1] < first[1] / 2
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_micro_batches_do_not_change_the_losses(home, text, tmp_path):
    train(distilled(home, text), tmp_path / "whole", Callback())
    train(distilled(home, text, "train.micro_batch_tokens=16"), tmp_path / "parts", Callback())
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_a_published_teacher_teaches_like_its_run(home, text, tmp_path):
    train(distilled(home, text), tmp_path / "run", Callback())
    train(distilled(home, text, teacher="hf"), tmp_path / "hf", Callback())
    np.testing.assert_allclose(of_teacher(tmp_path / "hf"), of_teacher(tmp_path / "run"), rtol=1e-6)


def test_a_run_knows_its_teacher_by_the_weights(home, text, tmp_path):
    shutil.copytree(home / "teacher", tmp_path / "moved")
    shutil.copytree(home / "teacher", tmp_path / "replaced")
    cfg = distilled(home, text, "train.checkpoint_every=5")
    with pytest.raises(RuntimeError, match="killed"):
        train(cfg, tmp_path / "run", Killed())
    with pytest.raises(UserError, match=r"train\.teacher\.path: .*teacher in the folder, .*other in the new config"):
        train(distilled(home, text, "train.checkpoint_every=5", teacher="other"), tmp_path / "run", Callback())
    with pytest.raises(UserError, match=r"train\.teacher\.temperature: 2\.0 in the folder, 3\.0 in the new config"):
        train(distilled(home, text, "train.teacher.temperature=3"), tmp_path / "run", Callback())
    moved = distilled(tmp_path, text, "train.checkpoint_every=5", teacher="moved")
    assert train(moved, tmp_path / "run", Callback()).status == "finished"

    in_place = distilled(tmp_path, text, teacher="replaced")
    with pytest.raises(RuntimeError, match="killed"):
        train(in_place, tmp_path / "second", Killed())
    shutil.rmtree(tmp_path / "replaced")
    shutil.copytree(home / "other", tmp_path / "replaced")
    with pytest.raises(UserError, match=r"train\.teacher\.path: .*replaced has changed since the run began"):
        train(in_place, tmp_path / "second", Callback())


def test_a_path_in_a_config_file_is_relative_to_the_file(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (home / "student.yaml").write_text("base: tiny-llama\ntrain: {teacher: {path: teacher}}\n")
    teacher = load_config(home / "student.yaml").train.teacher
    assert teacher is not None
    assert teacher.path == str((home / "teacher").resolve())


def test_the_name_of_a_run_has_the_weights_and_not_the_path(home, text, tmp_path):
    shutil.copytree(home / "teacher", tmp_path / "moved")

    def name(cfg):
        return Run("", cfg, "text", threads=1).name

    own = name(distilled(home, text))
    assert own == name(distilled(tmp_path, text, teacher="moved"))
    names = [own, name(config(data=text)), name(distilled(home, text, teacher="other"))]
    names.append(name(distilled(home, text, "train.teacher.temperature=3")))
    assert len(set(names)) == 4


REFUSED = {
    "train.teacher.path": [
        (("model.vocab_size=400",), "vocab_size = 300, but model.vocab_size is 400; both predict the same tokens"),
        (("model.d_model=48",), "d_model = 32, but model.d_model is 48; train.teacher.hidden compares layer by layer"),
        (("model.n_layers=3",), "n_layers = 2, but model.n_layers is 3; train.teacher.hidden compares layer by layer"),
        (
            ("train.objective.kind=prefix", "model.attention.visibility=prefix"),
            "model.attention.visibility: causal; training and scoring predict the tokens after a prefix",
        ),
        (("model.encoder.n_layers=1", "train.objective.kind=span_corruption"), "has no encoder, unlike the model"),
    ]
}


@pytest.mark.parametrize(("field", "overrides", "message"), [(f, *case) for f in REFUSED for case in REFUSED[f]])
def test_a_teacher_that_cannot_teach_is_refused(field, overrides, message, home, text, tmp_path):
    overrides = (*overrides, "data.reserve=[sentinels:4]") if "encoder" in message else overrides
    with pytest.raises(ConfigError) as error:
        train(distilled(home, text, *overrides), tmp_path / "run", Callback())
    problems = [problem for problem in error.value.problems if problem.path == field]
    assert any(message in problem.message for problem in problems), error.value
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_learned_positions_reads_no_longer_windows(home, text, tmp_path):
    learned = config("model.position.kind=learned", data=text)
    train(learned, tmp_path / "short", Callback())
    with pytest.raises(ConfigError, match=re.escape("train.seq_len: 32 exceeds model.max_seq_len = 16")):
        train(distilled(tmp_path, text, "train.seq_len=32", teacher="short"), tmp_path / "run", Callback())


def test_a_teacher_with_another_tokenizer_is_refused(home, text, tmp_path):
    other = write_text(tmp_path, "other.txt", lines=300)
    other.write_text(other.read_text().replace("cat", "zebra").replace("dog", "quokka"))
    with pytest.raises(UserError, match=r"train\.teacher\.path: .*other\.txt has a different tokenizer than .*teacher"):
        train(distilled(home, other), tmp_path / "run", Callback())


def test_a_teacher_that_does_not_exist_is_refused(home, text, tmp_path):
    with pytest.raises(UserError, match="missing: no such file or folder"):
        train(distilled(home, text, teacher="missing"), tmp_path / "run", Callback())


def test_a_teacher_that_does_not_fit_is_refused(home, text, tmp_path, monkeypatch):
    """The model alone needs 16 bytes per parameter, and the teacher 4 more."""
    n_bytes = 18 * sum(x.numel() for x in _weights(home / "teacher").values())
    monkeypatch.setattr(device.Device, "memory", n_bytes)
    train(config(data=text), tmp_path / "alone", Callback())
    with pytest.raises(UserError, match="float32 weights of the model and its teacher"):
        train(distilled(home, text), tmp_path / "run", Callback())


def _weights(run):
    from safetensors.torch import load_file

    return load_file(next((run / "checkpoints").iterdir()) / "model.safetensors")


def test_commands_that_count_only_the_model_say_so(home, text, capsys):
    overrides = [f"train.teacher.path={home / 'teacher'}"]
    assert app.main(["cost", "tiny-llama", *overrides, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "those of the model alone, without the passes and the weights of its teacher (train.teacher)" in err
    assert app.main(["cost", "tiny-llama", "--json"]) == 0
    assert json.loads(out) == json.loads(capsys.readouterr().out)
