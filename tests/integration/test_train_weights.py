"""Source of a run's weights: it is printed before the first step, and weights that would be ignored are refused."""

import json
import shlex
import shutil

import pytest

from archlab.cli import app
from archlab.config.core.yaml_text import to_yaml
from archlab.files import STUDY
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import MODEL, TRAIN, config

pytestmark = pytest.mark.usefixtures("shared_cache")
SHORT = [f"train.{key}={value}" for key, value in TRAIN.items()]
HOLDS = "{}: has weights, but training in {} would start from random weights."


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """Folder with a finished run, and the same model as a Hugging Face folder."""
    home = tmp_path_factory.mktemp("trained")
    train(config("train.schedule=constant", "train.warmup=0.2", data=text), home / "run", Callback())
    assert app.main(["export", str(home / "run"), "--out", str(home / "hf")]) == 0
    return home


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *arguments):
    """Return the lines of the error, and the commands in them."""
    capsys.readouterr()
    assert app.main(["train", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    return lines, [shlex.split(line)[1:] for line in lines if line.startswith("  archlab ")]


def first_loss(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["held_out_loss"]


def test_a_finished_run_is_refused_and_both_commands_work(here, capsys, text):
    lines, (further, from_scratch) = refused(capsys, "run", "train.lr=0.002", "--out", "my other")
    assert lines[0] == HOLDS.format("run", "my other")
    assert not (here / "my other").exists()
    assert app.main(from_scratch) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: random, seed 0"
    assert first_loss(here / "my other") == first_loss(here / "run")
    assert "lr: 0.002" in (here / "my other" / "config.yaml").read_text()
    train(
        config("train.schedule=constant", "train.warmup=2", "train.tokens=1280", data=text), here / "long", Callback()
    )
    assert app.main(further) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: from run, step 10 of 20"
    assert RunFolder(here / "run").summary().loss == RunFolder(here / "long").summary().loss


def test_a_hugging_face_folder_is_refused_and_both_ways_work(here, capsys, text):
    data = [*SHORT, f"data.path={text}"]
    lines, (imports, further, from_scratch) = refused(capsys, "hf", *data, "--out", "b")
    assert lines[0] == HOLDS.format("hf", "b")
    assert [app.main(imports), app.main(further)] == [0, 0]
    assert capsys.readouterr().err.splitlines()[0] == "weights: from b, step 0 of 10"
    assert first_loss(here / "b") == pytest.approx(RunFolder(here / "run").summary().loss, rel=1e-6)
    shutil.rmtree(here / "b")
    assert app.main(from_scratch) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: random, seed 0"
    assert first_loss(here / "b") == pytest.approx(first_loss(here / "run"), rel=1e-6)


def test_a_folder_without_weights_is_a_config(here, capsys, text):
    (here / "hf" / "model.safetensors").unlink()
    assert app.main(["train", "hf", *SHORT, f"data.path={text}", "--out", "b"]) == 0
    shutil.rmtree(here / "run" / "checkpoints")
    assert app.main(["train", "run", "--out", "c"]) == 0


@pytest.mark.parametrize("base", [False, True])
def test_another_tools_config_yaml_does_not_hide_the_weights(here, capsys, base):
    (here / "hf" / "config.yaml").write_text("foo: 1\n")
    (here / "mine.yaml").write_text("base: hf\n")
    lines, _ = refused(capsys, "mine.yaml" if base else "hf", "--out", "b")
    assert lines[0].startswith("mine.yaml: base is hf, a folder with weights" if base else "hf: has weights")
    assert "hf/config.json" in " ".join(lines)


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "adapter.safetensors"])
def test_a_file_that_no_loader_reads_is_not_a_models_weights(here, capsys, text, name):
    (here / "hf" / "model.safetensors").rename(here / "hf" / name)
    data = [f"data.path={text}", "train.eval_seq_len=8", "train.device=cpu"]
    assert app.main(["eval", "hf", *data]) == 0
    assert "untrained" in capsys.readouterr().out
    assert app.main(["train", "hf", *SHORT, f"data.path={text}", "--out", "b"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: random, seed 0"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json"])
def test_weights_of_every_format_are_seen(here, capsys, name):
    (here / "hf" / "model.safetensors").rename(here / "hf" / name)
    lines, _ = refused(capsys, "hf", "--out", "b")
    assert lines[0] == HOLDS.format("hf", "b")


def test_an_imported_model_takes_the_overrides_along(here, capsys, text):
    assert app.main(["import", "hf", "--out", "imported"]) == 0
    data = [*SHORT, f"data.path={text}", "train.lr=0.01"]
    _, (further, _) = refused(capsys, "imported", *data, "--out", "b")
    assert further == ["train", "imported", *data, "--out", "imported"]
    assert app.main(further) == 0


def test_a_run_that_stopped_goes_on(here, capsys):
    """`--out` names a run with a checkpoint, which has its own weights."""
    (here / "run" / "summary.json").unlink()
    _, (further, _) = refused(capsys, "run", "--out", "b")
    assert further == ["train", "run", "--out", "run"]
    assert app.main(further) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: from run, step 10 of 10"
    assert app.main(["train", "run/config.yaml", "--out", "b"]) == 0
    assert app.main(["train", "run", "--out", "b"]) == 0


def test_the_command_has_the_number_of_tokens_that_was_asked_for(here, capsys, text):
    train(config("train.schedule=constant", "train.warmup=2", data=text), here / "short", Callback())
    for asked, printed in (("train.tokens=1920", 1920), ("train.lr=0.002", 1280)):
        _, (further, _) = refused(capsys, "short", asked, "--out", "b")
        assert further == ["train", "short", f"train.tokens={printed}", "--out", "short"]


def test_what_cannot_be_made_longer_says_why(here, capsys, text):
    train(config(data=text), here / "cosine", Callback())
    lines, (from_scratch,) = refused(capsys, "cosine", "--out", "b")
    assert lines[1].startswith(
        "These weights cannot be trained further: cosine: the run has 640 training tokens and cannot be"
    )
    assert "train.schedule=cosine" in lines[1]
    assert app.main(from_scratch) == 0
    (here / STUDY).write_text("question: ?\n")
    shutil.copytree(here / "run", here / "runs" / "0123456789ab")
    lines, _ = refused(capsys, "runs/0123456789ab", "--out", "c")
    assert "belongs to a study, which sets the length of its runs" in lines[1]


@pytest.mark.parametrize("folder", ["run", "hf"])
def test_a_base_gives_its_config_alone_and_must_name_a_file(here, capsys, text, folder):
    home = here / "mine"
    home.mkdir()
    rest = {"train": TRAIN, "data": {"path": str(text)}}
    (home / "above.yaml").write_text(to_yaml({"base": f"../{folder}", **rest}))
    (home / "mine.yaml").write_text("base: above.yaml\n")
    lines, _ = refused(capsys, "mine/mine.yaml", "--out", "b")
    assert (
        lines[0] == f"mine/above.yaml: base is ../{folder}, a folder with weights, but a base provides only its config."
    )
    assert not (here / "b").exists()
    named = lines[1].rpartition("base: ")[2]
    (home / "above.yaml").write_text(to_yaml({"base": named, **rest}))
    assert app.main(["train", "mine/mine.yaml", "--out", "b"]) == 0
    assert first_loss(here / "b") == pytest.approx(first_loss(here / "run"), rel=1e-6)


def test_a_hub_id_is_refused_without_asking_the_network(here, capsys):
    lines, commands = refused(capsys, "some-one/small-1", "train.lr=0.002", "--out", "b")
    named = "some-one/small-1: is not a folder on this machine; as a hub id, it names a model with weights"
    assert lines[0] == f"{named}, but training in b would start from random weights."
    assert [" ".join(command) for command in commands] == [
        "import some-one/small-1 --out b",
        "train b train.lr=0.002 --out b",
        "show some-one/small-1 > small-1.yaml",
        "train small-1.yaml train.lr=0.002 --out b",
    ]


def test_notes_follow_the_weights(tmp_path, capsys, text):
    (tmp_path / "tiny.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN, "data": {"path": str(text)}}))
    assert app.main(["train", str(tmp_path / "tiny.yaml"), "train.tokens=650", "--out", str(tmp_path / "run")]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "weights: random, seed 0"
    assert "note: train.tokens is 650; the run trains on 640, in whole batches of 64" in rest


def test_notes_about_the_text_follow_the_weights_too(tmp_path, capsys, text):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "mine.txt").write_bytes(text.read_bytes() if text.is_file() else b"one two three\n" * 2000)
    (tmp_path / "private.txt").write_text("not mine")
    (folder / "link.txt").symlink_to(tmp_path / "private.txt")
    (tmp_path / "tiny.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN, "data": {"path": str(folder)}}))
    assert app.main(["train", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "run")]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "weights: random, seed 0"
    assert "note: left out: 1 linked from elsewhere" in rest
