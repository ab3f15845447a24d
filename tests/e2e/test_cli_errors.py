"""Mistakes of users on the real command line: each gives one clear message and writes nothing half."""

import os
import signal
import time

import pytest
import torch
from lab import lines, wait_until

from archlab.cli.app import main


@pytest.fixture
def here(lab, monkeypatch, capsys):
    """The command in this process, which saves the start of another one, and the files that it leaves."""
    monkeypatch.chdir(lab.folder)
    monkeypatch.setenv("ARCHLAB_CACHE", lab.env["ARCHLAB_CACHE"])
    torch.set_num_threads(1)

    def run(*arguments, code=2):
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err.strip() if code == 2 else out

    run.folder = lab.folder
    return run


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def trained(shared_lab):
    """Return a short run for the commands that need one."""
    shared_lab.run("train", "tiny.yaml", "train.tokens=640", "--out", "run")
    return shared_lab.folder / "run"


FIVE = """
model:
  {vocab_size: 300, d_model: 32, n_layers: 0,
   attention: {n_heads: 4, n_kv_heads: 3}, mlp: {activation: swishh}}
train: {lrr: 0.1, schedule: cosin}
"""


def test_five_mistakes_are_five_lines(here):
    (here.folder / "five.yaml").write_text(FIVE)
    message = here("train", "five.yaml", "--out", "run")
    assert message.splitlines()[0] == "5 problems in five.yaml"
    for line in (
        "model.n_layers              0; allowed: at least 1",
        "model.attention.n_kv_heads  3 does not divide n_heads = 4; allowed: 1, 2, 4",
        "model.mlp.activation        'swishh'; did you mean silu (swish)?",
        "train.lrr                   unknown; did you mean lr?",
        "train.schedule              'cosin'; did you mean cosine?",
    ):
        assert f"  {line}" in message
    assert not (here.folder / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian tiny.yaml --out new", "unknown command 'trian'; did you mean train?"),
        (
            "train tiny.yml --out new",
            "tiny.yml: no such file; names that begin with tiny: tiny-llama, tiny-transformer",
        ),
        ("train tiny-lama --out new", "did you mean tiny-llama?"),
        ("train tiny.yaml modl.d_model=3 --out new", "modl  unknown; did you mean model?"),
        ("train tiny.yaml model.d_modl=3 --out new", "model.d_modl  unknown; did you mean d_model?"),
        ("train tiny.yaml train.lr --out new", "train.lr  expected key=value"),
        ("train tiny.yaml train.lr=fast --out new", "train.lr  'fast'; allowed: a number"),
        ("train tiny.yaml model.attention.n_heads=5 --out new", "5 does not divide d_model = 32"),
        ("train tiny.yaml --ot new", "--ot"),
        ("train tiny.yaml", "--out"),
        ("train tiny.yaml data.path=nowhere.txt --out new", "nowhere.txt: no such file or folder"),
        ("train tiny.yaml data.path=empty.txt --out new", "empty.txt has no text"),
        ("train tiny.yaml data.path=binary.txt --out new", "binary.txt: binary file; expected UTF-8 text"),
        ("train tiny.yaml data.path=short.txt --out new", "train.seq_len is 16; "),
        ("train tiny.yaml model.vocab_size=200 --out new", "model.vocab_size is 200; allowed: 257"),
        ("train binary.txt --out new", "binary.txt: not a text file"),
        ("train full --out new", "full: the folder has no config.yaml"),
        ("train tiny.yaml --out full", "full contains other files (thesis.tex)"),
        ("train tiny.yaml --out text.txt", "text.txt is a file; allowed: a folder"),
        ("train tiny.yaml --out text.txt/new", "Not a directory"),
        ("data empty.txt --out new", "empty.txt has no text"),
        ("data binary.txt --out new", "binary.txt: binary"),
        ("data text.txt --out full", "full exists and is not a data folder"),
        ("data text.txt --out text.txt", "text.txt exists and is not a data folder"),
        ("data text.txt --out new --vocab-size 3", "--vocab-size is 3; allowed: 257"),
        ("eval nowhere", "unknown config 'nowhere'"),
        ("generate nowhere --prompt a", "nowhere: no such file or folder"),
        ("generate full --prompt a", "full: not a run folder (no config.yaml)"),
        ("study run laddr", "unknown study 'laddr'"),
        ("study show laddr", "did you mean ladder?"),
        ("study report full", "full: not a study folder (no study.yaml)"),
        ("study report ladder", "ladder: no such folder; `archlab study run ladder` makes one"),
        ("study run tiny.yaml", "question  missing; it has no default"),
        ("study run ladder --out full", "full contains other files (thesis.tex); choose an empty or new folder"),
        ("study run ladder --workers 0", "allowed: a whole number, at least 1"),
        ("demo --out text.txt", "text.txt is a file; allowed: a folder"),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(here, arguments, message):
    (here.folder / "empty.txt").touch()
    (here.folder / "binary.txt").write_bytes(bytes(range(256)))
    (here.folder / "short.txt").write_text("Too short.")
    (here.folder / "full").mkdir()
    (here.folder / "full" / "thesis.tex").write_text("mine")
    before = everything(here.folder)
    assert message in here(*arguments.split())
    assert everything(here.folder) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--temperature -1", "temperature: -1.0; allowed: 0 (greedy) or more"),
        ("--temperature nan", "temperature: nan"),
        ("--temperature inf", "temperature: inf"),
        ("--top-k 0", "top_k: 0; allowed: a whole number from 1"),
        ("--top-p 2", "top_p: 2.0; allowed: above 0, up to 1"),
        ("--max-new-tokens 0", "allowed: a whole number, at least 1"),
        ("--seed -1", "seed: -1; allowed: a whole number from 0"),
    ],
)
def test_sampling_that_makes_no_sense(here, trained, options, message):
    assert message in here("generate", trained, "--prompt", "a", *options.split())


def test_prompts(here, trained):
    """An empty prompt starts a new text. A byte that is not UTF-8 is refused."""
    options = ("--max-new-tokens", 5, "--seed", 1)
    assert here("generate", trained, "--prompt", "", *options, code=0).endswith("\n")
    text = here("generate", trained, "--prompt", "the cat", *options, code=0)
    assert text.startswith("the cat")
    assert text == here("generate", trained, "--prompt", "the cat", *options, code=0)
    here("generate", trained, "--prompt", "a", "--temperature", "1e-300", *options, code=0)
    assert here("generate", trained, "--prompt", "\udcff") == "prompt: not valid UTF-8"


def test_a_run_is_not_scored_on_what_it_was_not_made_for(here, trained):
    (here.folder / "other.txt").write_text("completely different words " * 400)
    here("data", "other.txt", "--vocab-size", 280, "--out", "other", code=0)
    assert "other has a different tokenizer than" in here("eval", trained, "data.path=other")
    assert "model.safetensors: does not match the config" in here("eval", trained, "model.d_model=64")
    assert "bits per byte" in here("eval", trained, code=0)


def test_another_run_does_not_go_into_a_runs_folder(here, trained):
    before = everything(trained)
    message = here("train", "tiny.yaml", "train.tokens=640", "train.lr=0.5", "--out", trained)
    assert "contains a run with another config" in message
    assert "  train.lr: 0.001 in the folder, 0.5 in the new config" in message
    assert everything(trained) == before


def test_damaged_weights_are_named(here, trained, tmp_path):
    (checkpoint,) = (trained / "checkpoints").iterdir()
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    try:
        for damaged in (whole[:-10], b"", whole[:3]):
            weights.write_bytes(damaged)
            assert "model.safetensors: damaged" in here("generate", trained, "--prompt", "a")
            assert "model.safetensors: damaged" in here("eval", trained)
    finally:
        weights.write_bytes(whole)


def test_a_damaged_shard_is_named_before_anything_is_written(here):
    here("data", "text.txt", "--out", "tokens", "--vocab-size", 300, code=0)
    shard = here.folder / "tokens" / "fold-01-00000.bin"
    whole = shard.read_bytes()
    altered = bytes([whole[0] ^ 1]) + whole[1:]
    for damaged, state in (
        (whole[:-2], "truncated"),
        (altered, "altered"),
        (b"", "truncated"),
        (whole * 2, "too long"),
    ):
        shard.write_bytes(damaged)
        message = here("train", "tiny.yaml", "data.path=tokens", "--out", "run")
        assert f"fold-01-00000.bin: {state}" in message
    shard.unlink()
    assert "fold-01-00000.bin: missing" in here("train", "tiny.yaml", "data.path=tokens", "--out", "run")
    assert not (here.folder / "run").exists()


def test_nan_outputs_are_not_sampled_or_scored(here, trained, monkeypatch, capsys):
    def no_number(self, x, _):
        return torch.full((*x.shape[:-1], 300), torch.nan)

    monkeypatch.setattr("archlab.model.decoder.Head.forward", no_number)
    assert "the model's output is NaN" in here("generate", trained, "--prompt", "a")
    assert "the model's output is NaN" in here("eval", trained)
    main(["generate", str(trained), "--prompt", "a"])
    assert capsys.readouterr().out == "a\n", "the message of the error has its own line"


# --- a full disk, Ctrl-C --------------------------------------------------------------------------


@pytest.mark.parametrize(("n_bytes", "what"), [(60_000, "checkpoint of step 10"), (3000, "cannot write")])
def test_a_full_disk_stops_a_run_that_goes_on_when_there_is_room(lab, here, n_bytes, what):
    here("data", "text.txt", "--out", "tokens", "--vocab-size", 300, code=0)
    arguments = ("train", "tiny.yaml", "train.tokens=1280", "data.path=tokens", "--out", "run")
    err = lab.run(*arguments, code=2, max_file_bytes=n_bytes).stderr
    assert what in err
    assert "File too large" in err
    assert not list((lab.folder / "run").rglob("step-*"))
    assert "after 1,280 tokens" in here(*arguments, code=0)
    assert [line["step"] for line in lines(lab.folder / "run" / "metrics.jsonl") if "lr" in line] == list(range(1, 21))


def test_a_full_disk_leaves_no_half_of_an_export(lab, trained):
    before = everything(lab.folder)
    err = lab.run("export", trained, "--out", "hf", code=2, max_file_bytes=20_000).stderr
    assert err.startswith("hf: cannot write: ")
    assert "File too large" in err
    assert everything(lab.folder) == before


def test_a_full_disk_leaves_no_half_of_a_data_folder(lab):
    before = everything(lab.folder)
    err = lab.run("data", "text.txt", "--out", "tokens", code=2, max_file_bytes=1_000).stderr
    assert "File too large" in err
    assert everything(lab.folder) == before


def test_ctrl_c_leaves_no_half_of_a_data_folder(lab):
    text = (lab.folder / "text.txt").read_text()
    (lab.folder / "long.txt").write_text(text * 400)
    before = set(lab.folder.iterdir())
    process = lab.start("data", "long.txt", "--out", "tokens")
    assert wait_until(lambda: set(lab.folder.iterdir()) != before, process)
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert set(lab.folder.iterdir()) == before


def test_repeated_ctrl_c_prints_no_traceback(lab):
    (lab.folder / "long.txt").write_text((lab.folder / "text.txt").read_text() * 400)
    before = set(lab.folder.iterdir())
    process = lab.start("data", "long.txt", "--out", "tokens")
    assert wait_until(lambda: set(lab.folder.iterdir()) != before, process)
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.001)
    out, err = process.communicate()
    assert (out, process.returncode) == ("", 130), err
    assert "Traceback" not in err
    assert "Exception" not in err
