"""Weights from which a run begins: random ones, or those of a folder; the command prints them before the first step."""

import json
import math
import re
import shlex
import shutil

import pytest
from safetensors.torch import load_file, save_file

from archlab.cli import app
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.hf.imported import imported
from archlab.model.decoder import Decoder
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import MODEL, TRAIN, Killed, config, losses

pytestmark = pytest.mark.usefixtures("shared_cache")
SHORT = [f"train.{key}={value}" for key, value in TRAIN.items()]


class KilledAtOnce(Callback):
    """Callback that ends a run with an error before its first step."""

    def on_weights(self, source: str) -> None:
        raise RuntimeError("killed")


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """Folder with a finished run, and the same model as a Hugging Face folder."""
    home = tmp_path_factory.mktemp("trained")
    train(config("train.schedule=constant", "train.warmup=0.2", data=text), home / "run", Callback())
    assert app.main(["export", str(home / "run"), "--out", str(home / "hf")]) == 0
    return home


def refused(capsys, *arguments):
    """Return the lines of the error, and the commands in them."""
    capsys.readouterr()
    assert app.main(["train", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    return lines, [shlex.split(line)[1:] for line in lines if line.startswith("  archlab ")]


def first_loss(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["held_out_loss"]


def test_a_new_run_begins_from_the_weights_of_a_run(here, capsys):
    assert app.main(["train", "run", "train.lr=0.002", "--out", "my other"]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    n_tensors = len(Decoder(config().model, seed=None).state_dict())
    assert first == f"weights: from {here / 'run'} (step 10); tensors: {n_tensors} kept"
    assert not [line for line in rest if "logits" in line]
    assert first_loss(here / "my other") == RunFolder(here / "run").summary().loss
    assert load_config("my other").train.start == str(here / "run")
    assert app.main(["train", "run", "train.lr=0.002", "--out", "my other"]) == 0  # finished: nothing happens


def test_a_config_file_begins_from_random_weights(here, capsys):
    assert app.main(["train", "run/config.yaml", "--out", "b"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "weights: random, seed 0"
    assert first_loss(here / "b") == first_loss(here / "run")


def test_a_published_model_brings_its_tokenizer_and_is_exported_again(here, capsys, text):
    assert app.main(["train", "hf", *SHORT, f"data.path={text}", "--out", "b"]) == 0
    assert capsys.readouterr().err.splitlines()[0].startswith(f"weights: from {here / 'hf'} (published); tensors: ")
    assert first_loss(here / "b") == pytest.approx(RunFolder(here / "run").summary().loss, rel=1e-6)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (here / "b" / name).read_bytes() == (here / "hf" / name).read_bytes()
    assert imported(here / "b").source == str(here / "hf")
    assert app.main(["export", "b", "--out", "again"]) == 0
    assert (here / "again" / "tokenizer.json").read_bytes() == (here / "hf" / "tokenizer.json").read_bytes()


def test_data_with_another_tokenizer_is_refused(here, capsys, text):
    assert app.main(["data", str(text), "--vocab-size", "290", "--out", "other"]) == 0
    lines, _ = refused(capsys, "run", "data.path=other", "--out", "b")
    assert lines[-1].startswith(f"data.path: other has a different tokenizer than {here / 'run'}; make it with")
    lines, _ = refused(capsys, "run", "data.task={kind: recall, pairs: 2}", "--out", "b")
    assert "was trained on text, so its tokens have another meaning" in lines[-1]


def test_a_changed_model_begins_from_changed_weights(here, capsys):
    assert app.main(["train", "run", "model.attention.n_kv_heads=1", "--out", "b"]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("4 changed")
    assert any(
        line.startswith("note: fewer key/value heads (approximate): attention of layers 0 to 1: 2 to 1 heads; largest")
        for line in rest
    )
    assert any("differ from the trained ones by a KL divergence of" in line for line in rest)


def test_a_file_with_a_start_needs_no_model(here, capsys, text):
    home = here / "mine"
    home.mkdir()
    values = {"model": {"attention": {"window": 8}}, "train": {**TRAIN, "start": "../run"}, "data": {"path": str(text)}}
    (home / "mine.yaml").write_text(to_yaml(values))
    assert app.main(["train", "mine/mine.yaml", "--out", "b"]) == 0
    found = load_config("b")
    assert found.model == config("model.attention.window=8").model
    assert found.train.start == str(here / "run")
    assert found.data.tokenizer == str(here / "b")  # a copy, which stays if the weights are gone
    assert (
        "window (approximate): model.attention.window in layers 0 to 1: null to 8 (exact in texts of up to 8 tokens)"
        in capsys.readouterr().err
    )


def test_a_killed_run_resumes_exactly_and_only_from_the_same_weights(here, capsys, text):
    start = "train.start=run"
    longer = config(start, "train.tokens=1280", "train.checkpoint_every=5", data=text)
    whole = train(longer, here / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(longer, here / "b", Killed())
    (here / "run").rename(here / "moved")
    moved = config("train.start=moved", "train.tokens=1280", "train.checkpoint_every=5", data=text)
    with pytest.raises(RuntimeError, match="killed"):
        train(moved, here / "c", Killed())
    shutil.copytree(here / "b", here / "d")
    assert train(moved, here / "b", Callback()).loss == whole.loss
    assert losses(here / "b") == losses(here / "whole")
    assert train(longer, here / "d", Callback()).loss == whole.loss  # the weights are gone, and no longer needed
    train(config("train.tokens=1280", data=text), here / "other", Callback())
    with pytest.raises(UserError, match=r"train\.start: moved in the folder, other in the new config"):
        train(config("train.start=other", "train.tokens=1280", "train.checkpoint_every=5", data=text), here / "c")


class Notes(Callback):
    """Callback that keeps the notes."""

    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


def test_a_run_resumes_after_its_start_was_extended(here, text):
    """The start is read only once, so only a run without a checkpoint of its own needs the same weights."""
    longer = config("train.start=run", "train.tokens=1280", "train.checkpoint_every=5", data=text)
    whole = train(longer, here / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(longer, here / "b", Killed())
    shutil.copytree(here / "b", here / "c")
    shutil.rmtree(here / "c" / "checkpoints")
    began = RunFolder(here / "b").environment()["start"]
    extended = ("train.schedule=constant", "train.warmup=2", "train.tokens=1280")
    train(config(*extended, data=text), here / "run", Callback())
    with pytest.raises(
        UserError, match=r"train\.start: run has changed since the run began \(fingerprint \w+, now \w+\)"
    ):
        train(longer, here / "c", Callback())
    shutil.copytree(here / "run", here / "moved")
    moved = config("train.start=moved", "train.tokens=1280", "train.checkpoint_every=5", data=text)
    with pytest.raises(UserError, match=r"train\.start: run in the folder, moved in the new config"):
        train(moved, here / "b", Callback())
    notes = Notes()
    assert train(longer, here / "b", notes).loss == whole.loss
    assert losses(here / "b") == losses(here / "whole")
    assert any(note.startswith("run no longer has the weights from which the run began") for note in notes.notes)
    assert RunFolder(here / "b").environment()["start"] == began


def test_the_command_is_repeated_after_the_start_was_extended(here, text):
    """The length of the new run was that of its start, and stays."""
    command = ["train", "run", "train.lr=0.002", "--out", "b"]
    assert app.main(command) == 0
    loss = RunFolder(here / "b").summary().loss
    (here / "b" / "summary.json").unlink()
    assert app.main(["train", "run", "train.tokens=1280", "train.warmup=2", "--out", "run"]) == 0
    assert app.main(command) == 0
    assert (RunFolder(here / "b").summary().loss, len(losses(here / "b"))) == (loss, 10)
    assert app.main([*command, "train.tokens=1280", "train.warmup=2"]) == 0
    assert len(losses(here / "b")) == 20


def test_a_converted_model_is_trained_in_place_or_elsewhere(here, capsys):
    """Settings of training may change, but the model and its weights are those of the folder."""
    fewer = "model.attention.n_kv_heads=1"
    for folder in ("converted", "adapted"):
        assert app.main(["convert", "run", fewer, "--out", folder]) == 0
    changed = ["train.lr=0.002", "train.checkpoint_every=5"]
    lines, _ = refused(capsys, "converted", "model.attention.n_kv_heads=2", "--out", "converted")
    assert "contains a model with another config" in " ".join(lines)
    lines, _ = refused(capsys, "run", fewer, "--out", "converted")
    assert "train.start: None in the folder" in " ".join(lines)
    assert app.main(["train", "converted", *changed, "--out", "b"]) == 0
    assert app.main(["train", "converted", *changed, "--out", "converted"]) == 0
    assert losses(here / "converted") == losses(here / "b")
    (here / "converted" / "summary.json").unlink()
    assert app.main(["train", "converted", *changed, "--out", "converted"]) == 0
    lines, _ = refused(capsys, "converted", "train.lr=0.003", "--out", "converted")
    assert "train.lr: 0.002 in the folder, 0.003 in the new config" in " ".join(lines)
    assert app.main(["train", "adapted", "train.lora={}", "--out", "adapted"]) == 0
    assert first_loss(here / "adapted") == first_loss(here / "b")


@pytest.mark.parametrize(("made_from", "config_file"), [("hf", "config.json"), ("run", "config.yaml")])
def test_a_folder_without_its_weights_is_refused(here, capsys, text, made_from, config_file):
    assert app.main(["convert", made_from, "model.attention.n_kv_heads=1", "--out", "converted"]) == 0
    if made_from == "hf":
        (here / "converted" / "model.safetensors").unlink()
    else:
        shutil.rmtree(here / "converted" / "checkpoints")
    data = [*SHORT, f"data.path={text}"]
    lines, _ = refused(capsys, "converted", *data, "--out", "b")
    assert lines[-1].startswith("converted: has no weights from which to begin; to begin from random weights, name ")
    assert lines[-1].endswith(f"converted/{config_file}")
    assert not (here / "b").exists()
    assert app.main(["train", f"converted/{config_file}", *data, "--out", "b"]) == 0
    assert "weights: random" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["convert", "run", "model.attention.n_kv_heads=1"], ["import", "hf"]])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_model_is_not_trained_in_place_without_its_weights(here, capsys, text, command, has_begun):
    """A run that has begun but has not saved a checkpoint is without weights, too."""
    assert app.main([*command, "--out", "made"]) == 0
    in_place = ["made", *SHORT, f"data.path={text}", "--out", "made"]
    if has_begun:
        with pytest.raises(RuntimeError):
            train(load_config("made", *in_place[1:-2]), here / "made", KilledAtOnce())
    shutil.rmtree(here / "made" / "checkpoints")
    lines, _ = refused(capsys, *in_place)
    assert lines[-1].startswith("made/checkpoints: no checkpoint; the run cannot begin without the weights of the ")
    assert RunFolder(here / "made").summary() is None


def test_another_tools_config_yaml_does_not_hide_the_weights(here, capsys):
    (here / "hf" / "config.yaml").write_text("foo: 1\n")
    (here / "mine.yaml").write_text("base: hf\n")
    lines, _ = refused(capsys, "mine.yaml", "--out", "b")
    assert lines[0].startswith("mine.yaml: base is hf, a folder with weights")
    assert "base: hf/config.json" in lines[0]


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "adapter.safetensors"])
def test_a_file_that_no_loader_reads_is_not_a_models_weights(here, capsys, text, name):
    (here / "hf" / "model.safetensors").rename(here / "hf" / name)
    data = [f"data.path={text}", "train.eval_seq_len=8", "train.device=cpu"]
    assert app.main(["eval", "hf", *data]) == 0
    assert "untrained" in capsys.readouterr().out
    lines, _ = refused(capsys, "hf", *SHORT, f"data.path={text}", "--out", "b")
    assert lines[-1].startswith("hf: has no weights from which to begin")


def test_an_imported_model_is_trained_in_place_or_elsewhere(here, capsys, text):
    assert app.main(["import", "hf", "--out", "imported"]) == 0
    data = [*SHORT, f"data.path={text}", "train.lr=0.01"]
    assert app.main(["train", "imported", *data, "--out", "b"]) == 0
    assert app.main(["train", "imported", *data, "--out", "imported"]) == 0
    assert RunFolder(here / "b").summary().loss == RunFolder(here / "imported").summary().loss


@pytest.mark.parametrize("folder", ["run", "hf"])
def test_a_base_gives_its_config_alone_and_must_name_a_file(here, capsys, text, folder):
    home = here / "mine"
    home.mkdir()
    rest = {"train": TRAIN, "data": {"path": str(text)}}
    (home / "above.yaml").write_text(to_yaml({"base": f"../{folder}", **rest}))
    (home / "mine.yaml").write_text("base: above.yaml\n")
    lines, _ = refused(capsys, "mine/mine.yaml", "--out", "b")
    problem = f"mine/above.yaml: base is ../{folder}, a folder with weights, but a base provides only its config"
    assert lines[0].startswith(problem)
    assert not (here / "b").exists()
    named = lines[0].rpartition("base: ")[2]
    (home / "above.yaml").write_text(to_yaml({"base": named, **rest}))
    assert app.main(["train", "mine/mine.yaml", "--out", "b"]) == 0
    assert first_loss(here / "b") == pytest.approx(first_loss(here / "run"), rel=1e-6)


def test_a_hub_id_is_a_start(here, capsys):
    lines, _ = refused(capsys, "some-one/small-1", "train.lr=0.002", "--out", "b")
    assert lines[-1].startswith("some-one/small-1: ")


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


def test_layers_are_chosen_by_a_list_or_by_their_similarity(here, capsys):
    assert app.main(["train", "run", "model.n_layers=1", "train.start_layers=[1]", "--out", "b"]) == 0
    assert app.main(["train", "run", "model.n_layers=1", "train.start_layers=similar", "--out", "c"]) == 0
    assert first_loss(here / "b") == first_loss(here / "c")  # the last layer is always kept
    assert app.main(["convert", "run", "model.n_layers=1", "train.start_layers=[1]", "--out", "d"]) == 0
    assert app.main(["train", "d", "--out", "d"]) == 0
    assert first_loss(here / "d") == first_loss(here / "b")
    lines, _ = refused(capsys, "run", "model.n_layers=1", "--out", "e")
    assert "train.start_layers" in lines[-1]
    lines, _ = refused(capsys, "run/config.yaml", "train.start_layers=[0, 1]", "--out", "e")
    assert "train.start is null" in " ".join(lines)


def test_a_run_needs_its_weights_only_once(here, capsys):
    assert app.main(["train", "run", "--out", "b"]) == 0
    loss = RunFolder(here / "b").summary().loss
    shutil.rmtree(here / "run")
    (here / "b" / "summary.json").unlink()
    assert app.main(["train", "b", "--out", "b"]) == 0
    assert RunFolder(here / "b").summary().loss == loss
    assert app.main(["eval", "b"]) == 0


def test_a_start_that_is_gone_is_refused_by_its_field(here, capsys, text):
    """Also in a file, and if a run that has begun has no checkpoint of its own yet."""
    (here / "gone.yaml").write_text(to_yaml({"train": {"start": "/nowhere", "tokens": 640}}))
    (here / "teacher.yaml").write_text(to_yaml({"train": {"start": "run", "teacher": {"path": "/nowhere"}}}))
    for command in (["gone.yaml"], ["tiny-llama", "train.start=/nowhere"]):
        lines, _ = refused(capsys, *command, "--out", "b")
        assert len(lines) == 1
        assert lines[0].startswith("train.start: /nowhere: no such file or folder")
    lines, _ = refused(capsys, "teacher.yaml", *SHORT, f"data.path={text}", "--out", "b")
    assert lines[-1].startswith("train.teacher.path: /nowhere: no such file or folder")
    with pytest.raises(RuntimeError, match="killed"):
        train(config("train.start=run", data=text), here / "begun", KilledAtOnce())
    shutil.rmtree(here / "run")
    lines, _ = refused(capsys, "begun", "--out", "begun")
    assert lines[-1].startswith("train.start: run: no such file or folder")


@pytest.mark.parametrize("field", ["data.path", "data.tokenizer"])
def test_data_that_is_missing_is_refused_by_its_field(here, capsys, field):
    lines, _ = refused(capsys, "run/config.yaml", f"{field}=/nowhere", "--out", "b")
    assert lines[-1].startswith(f"{field}: /nowhere: no such file or folder")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(here, capsys, value):
    tensors = load_file(here / "hf" / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, here / "hf" / "model.safetensors", metadata={"format": "pt"})
    named = "hf: values of layers.1.mlp.up.weight are NaN or infinite; allowed: finite weights"
    commands = (["convert", "hf", "model.head.tied=true"], ["import", "hf"], ["export", "hf", "--gguf"])
    for command in commands:
        assert app.main([*command, "--out", "b"]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == named
    lines, _ = refused(capsys, "hf", "--out", "b", *SHORT)
    assert lines[-1] == f"train.start: {here / named}"
    assert not (here / "b").exists()


def test_what_the_weights_have_read_is_not_held_out(here, capsys, text):
    lines, _ = refused(capsys, "run", "data.fold=1", "--out", "b")
    assert "data.fold: 1; " in lines[-1]
    assert "was trained on this fold; allowed: its data.fold and data.excluded_folds" in lines[-1]
    assert app.main(["data", str(text), "--vocab-size", "290", "--out", "other"]) == 0
    lines, _ = refused(capsys, "run", "data.tokenizer=other", "data.path=other", "--out", "b")
    assert lines[-1].startswith("train.start: other has a different tokenizer than")


def test_lora_does_not_freeze_new_tensors(here, capsys):
    new = "model.attention.qk_norm.kind=rmsnorm"
    lines, _ = refused(capsys, "run", new, "train.lora={}", "--out", "b")
    assert "train.lora: LoRA trains only its own matrices, so layers.0.attention." in lines[-1]


def test_the_end_of_a_long_window_is_compared(here, capsys):
    """A window of 8 tokens changes nothing before the ninth token."""
    assert app.main(["train", "run", "model.attention.window=8", "--out", "b"]) == 0
    (change,) = re.findall(r"KL divergence of ([\d.e-]+)", capsys.readouterr().err)
    assert float(change) > 0
    assert app.main(["convert", "run", "model.attention.window=8", "--out", "c"]) == 0
    assert "random tokens differ" in capsys.readouterr().out
