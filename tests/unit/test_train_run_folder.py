"""Folder of a run: which run it belongs to, what a killed process may leave, and who may write to it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from archlab import digests
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.files import TEMPORARY
from archlab.training.callback import Callback
from archlab.training.device import Device, environment
from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary
from archlab.training.train import train
from tiny import config, write_text

ENV = {"corpus": "c0ffee", "dtype": "float32", "device": "cpu", "threads": 1}


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path / "tokenizer.json"


@pytest.fixture
def claimed(tmp_path, tokenizer):
    folder = RunFolder(tmp_path / "run")
    folder.claim(config(), ENV, tokenizer)
    return folder


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_claim_makes_the_folder_and_the_same_run_may_come_back(claimed, tokenizer):
    assert names(claimed) == ["config.yaml", "digests.json", "env.json", "tokenizer.json"]
    before = {path: path.read_bytes() for path in claimed.path.iterdir()}
    assert claimed.claim(config(), ENV, tokenizer) == []
    notes = claimed.claim(config(), {**ENV, "threads": 99}, tokenizer)
    assert notes == [
        f"the run began with threads {ENV['threads']}, now 99: its result can differ by rounding errors from "
        "that of an uninterrupted run"
    ]
    assert {path: path.read_bytes() for path in claimed.path.iterdir()} == before


def test_a_folder_made_beforehand_is_welcome_when_empty(tmp_path, tokenizer):
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").claim(config(), ENV, tokenizer)
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_another_config_is_refused_with_the_fields_that_differ(claimed, tokenizer):
    with pytest.raises(UserError) as refused:
        claimed.claim(config("train.lr=0.5", "model.norm.kind=layernorm"), ENV, tokenizer)
    message = str(refused.value)
    assert "contains a run with another config; choose another folder" in message
    assert "  train.lr: 0.001 in the folder, 0.5 in the new config" in message
    assert "  model.norm.kind: rmsnorm in the folder, layernorm in the new config" in message
    assert "d_model" not in message


def test_fields_that_do_not_decide_the_result_may_change(claimed, tokenizer):
    before = (claimed.path / "config.yaml").read_bytes()
    assert claimed.claim(config("train.eval_every=3", "train.checkpoint_every=7"), ENV, tokenizer) == []
    assert (claimed.path / "config.yaml").read_bytes() == before


def test_the_same_tokens_may_lie_elsewhere_but_other_tokens_are_refused(claimed, tokenizer):
    claimed.claim(config(data="/elsewhere"), ENV, tokenizer)
    with pytest.raises(UserError, match=r"data.path: python-stdlib in the folder, /elsewhere in the new config"):
        claimed.claim(config(data="/elsewhere"), {**ENV, "corpus": "other"}, tokenizer)
    with pytest.raises(UserError) as refused:
        claimed.claim(config(), {**ENV, "corpus": "other"}, tokenizer)
    assert str(refused.value) == (
        f"{claimed.path}: data.path: python-stdlib has changed since the run began (fingerprint c0ffee, now other); "
        "restore it to continue the run, or choose another folder"
    )


@pytest.mark.parametrize(
    ("what", "began", "now", "field"),
    [
        ("dtype", "float32", "bfloat16", "train.dtype=float32"),
        ("device", "cpu", "cuda", "train.device=cpu"),
        ("compiled", False, True, "train.compile=false"),
    ],
)
def test_another_number_format_device_or_compilation_is_refused_and_the_old_one_can_be_asked_for(
    claimed, tokenizer, what, began, now, field
):
    auto = config("train.dtype=auto", "train.device=auto")
    claimed.claim(auto, ENV, tokenizer)
    with pytest.raises(
        UserError, match=f"the run began with {what} {began} and cannot continue with {now}.*set {field}"
    ):
        claimed.claim(auto, {**ENV, what: now}, tokenizer)
    claimed.claim(config(field), {**ENV, what: began}, tokenizer)


def test_micro_batches_that_decide_the_losses_are_remembered(tmp_path, tokenizer):
    folder, before = RunFolder(tmp_path / "run"), {**ENV, "micro_batch_tokens": 64}
    folder.claim(config(), before, tokenizer)
    with pytest.raises(
        UserError, match=r"cannot continue with 32.*set train\.micro_batch_tokens=64, and let each process"
    ):
        folder.claim(config(), {**before, "micro_batch_tokens": 32}, tokenizer)
    folder.claim(config("train.micro_batch_tokens=64"), before, tokenizer)


@pytest.mark.parametrize("name", ["thesis.tex", "tokenizer.json", "env.json", "summary.json", ".hidden"])
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, tokenizer, name):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / name).write_text("mine")
    with pytest.raises(UserError, match=f"contains other files \\({name}\\)"):
        folder.claim(config(), ENV, tokenizer)
    assert names(folder) == [name]
    assert (folder.path / name).read_text() == "mine"


def test_a_config_that_is_not_ours_is_left_alone(tmp_path, tokenizer):
    folder = RunFolder(tmp_path)
    (tmp_path / "config.yaml").write_text("lunch: noon")
    with pytest.raises(UserError, match="lunch"):
        folder.claim(config(), ENV, tokenizer)
    assert names(folder) == ["config.yaml", "tokenizer.json"]


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_a_file_is_refused_as_a_folder(tmp_path, tokenizer, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file.*(is a file; allowed: a folder|Not a directory)"):
        RunFolder(tmp_path / below).claim(config(), ENV, tokenizer)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kill_before", [1, 2, 3, 4])
def test_a_kill_during_the_claim_leaves_a_folder_that_can_be_claimed(tmp_path, tokenizer, monkeypatch, kill_before):
    folder, write, written = RunFolder(tmp_path / "run"), digests.write_atomic, []

    def killed(path, content):
        written.append(path)
        if len(written) == kill_before:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(digests, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.claim(config(), ENV, tokenizer)
    monkeypatch.undo()
    folder.claim(config(), ENV, tokenizer)
    assert names(folder) == ["config.yaml", "digests.json", "env.json", "tokenizer.json"]


DEEP = b"[" * 100_000
JUNK = [b"", b"{", b"\xff\xfe", b"[]", b"7", b"null", DEEP]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("damage", JUNK)
def test_a_damaged_environment_is_a_message(claimed, tokenizer, damage, listed):
    """The message appears even without a digest."""
    (claimed.path / "env.json").write_bytes(damage)
    if not listed:
        (claimed.path / "digests.json").unlink()
    for read in (lambda: claimed.claim(config(), ENV, tokenizer), claimed.environment):
        with pytest.raises(UserError, match=r"env.json: damaged"):
            read()


PIPE, DEVICE = os.mkfifo, lambda path: path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("file", "make"),
    [
        (".lock", PIPE),
        *((file, make) for file in ("config.yaml", "env.json", "tokenizer.json") for make in (PIPE, DEVICE)),
    ],
)
def test_a_pipe_or_a_device_in_a_files_place_is_waited_for_by_nobody(claimed, tokenizer, file, make):
    (claimed.path / file).unlink(missing_ok=True)
    make(claimed.path / file)
    with pytest.raises((UserError, OSError), match=rf"{file}"), claimed.locked():
        claimed.claim(config(), ENV, tokenizer)


@pytest.mark.parametrize("file", ["config.yaml", "env.json", "tokenizer.json"])
def test_one_other_character_is_damage(claimed, tokenizer, file):
    path = claimed.path / file
    path.write_text(path.read_text() + " ")
    with pytest.raises(UserError, match=rf"{file}: damaged: its content is not what was written"):
        claimed.claim(config(), ENV, tokenizer)


@pytest.mark.parametrize("damage", [*JUNK, b'{"env.json": 7}'])
def test_damaged_digests_are_a_message(claimed, tokenizer, damage):
    (claimed.path / "digests.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"digests.json: damaged; .* or delete it to continue without checks"):
        claimed.claim(config(), ENV, tokenizer)
    (claimed.path / "digests.json").unlink()
    claimed.claim(config(), ENV, tokenizer)


def test_damage_stays_damage_when_a_kill_leaves_it(tmp_path, monkeypatch):
    """The list of digests is written before the file that replaces the damaged one."""
    file = tmp_path / "file"
    for content in ("first", "second"):
        digests.write_with_digests(tmp_path, {"file": content})
        digests.verify(file)
    file.write_text("damaged")
    write = digests.write_atomic
    monkeypatch.setattr(digests, "write_atomic", lambda path, content: path == file or write(path, content))
    digests.write_with_digests(tmp_path, {"file": "third"})
    assert file.read_text() == "damaged"
    with pytest.raises(UserError, match="file: damaged"):
        digests.verify(file)
    file.write_text("third")
    digests.verify(file)


def test_what_a_kill_left_half_written_is_removed(claimed):
    (claimed.checkpoints / f"{TEMPORARY}1-step-00000003").mkdir(parents=True)
    (claimed.checkpoints / f"{TEMPORARY}1-step-00000003" / "model.safetensors").write_text("half")
    (claimed.path / f"{TEMPORARY}1-metrics.jsonl").write_text("half")
    with claimed.locked():
        assert names(claimed) == [".lock", "checkpoints", "config.yaml", "digests.json", "env.json", "tokenizer.json"]
        assert list(claimed.checkpoints.iterdir()) == []


CLAIM = """
import sys
from pathlib import Path
from tiny import config
from archlab.errors import UserError
from archlab.training.run_folder import RunFolder
env = {"corpus": "c0ffee", "dtype": "float32", "device": "cpu", "threads": 1}
folder = RunFolder(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
try:
    with folder.locked():
        folder.claim(config(f"train.lr={sys.argv[3]}"), env, Path(sys.argv[2]))
        print("mine", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
def test_only_one_of_two_processes_that_begin_at_once_gets_the_folder(tmp_path, tokenizer):
    command = [sys.executable, "-c", CLAIM, str(tmp_path / "run"), str(tokenizer)]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "cwd": Path(__file__).parents[1] / "shared",
    }
    both = {rate: subprocess.Popen([*command, rate], **pipes) for rate in ("0.5", "0.25")}
    for process in both.values():
        assert process.stdout.readline() == "ready\n"
    for process in both.values():
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {rate: process.stdout.readline() for rate, process in both.items()}
    for process in both.values():
        process.kill()
        process.communicate()
    with RunFolder(tmp_path / "run").locked():
        pass  # the kernel releases the lock of a killed process
    (first,) = [rate for rate, words in said.items() if words == "mine\n"]
    assert [words for rate, words in said.items() if rate != first] == [
        f"{tmp_path / 'run'}: another process is training this run\n"
    ]
    assert load_config(tmp_path / "run").train.lr == float(first)


def test_only_who_holds_the_folder_writes_its_config(tmp_path, monkeypatch):
    """Otherwise a folder could have the config of one run and the weights of another."""
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    folder, text = RunFolder(tmp_path / "run"), write_text(tmp_path)
    with folder.locked(), pytest.raises(UserError, match="another process is training this run"):
        train(config(data=text), folder.path, Callback())
    assert names(folder) == [".lock"]


def test_rewinding_drops_later_lines_and_a_torn_one(claimed):
    for step in range(1, 6):
        claimed.log(step=step, loss=step / 3)
        if step == 3:
            until = claimed.logged()
    metrics = claimed.path / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"step": 2, "lo')
    assert [line["step"] for line in claimed.metrics()] == [1, 2, 3, 4, 5]
    claimed.rewind(until)
    assert metrics.read_bytes() == until == claimed.logged()
    claimed.log(step=4, loss=0.5)
    expected = [(1, 1 / 3), (2, 2 / 3), (3, 1.0), (4, 0.5)]
    assert [(line["step"], line["loss"]) for line in RunFolder(claimed.path).metrics()] == expected


def test_what_is_done_to_the_file_while_a_training_goes_on_is_not_in_its_result(claimed):
    claimed.rewind(b"")
    claimed.log(step=1, loss=1.0)
    (claimed.path / "metrics.jsonl").write_text("")
    claimed.log(step=2, loss=0.5)
    assert [line["step"] for line in claimed.metrics()] == [1, 2]
    claimed.finish(SUMMARY)
    assert [line["step"] for line in RunFolder(claimed.path).metrics()] == [1, 2]


UPDATE = {"step": 2, "tokens": 64, "loss": 1.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_second": 1e3}


@pytest.mark.parametrize(
    "damage",
    [
        b"no json", b"\xff\xfe", b"\0\0\0", b"7", b"null", b"[]", b'"step"', b"{}", DEEP, b'{"step": "2"}',
        b'{"step": 2, "bits_per_byte": 2.5}', b'{"step": 2, "lr": 0.1}',
        *(json.dumps(UPDATE | {key: value}).encode() for key in UPDATE for value in ("x", None, -1, math.nan, [])),
        json.dumps(UPDATE | {"tokens_per_second": 0}).encode(), b'{"step": 1, "x": 1' + b"0" * 400 + b"}",
    ],
)  # fmt: skip
def test_damaged_metrics_are_a_message(claimed, damage):
    claimed.log(step=1, loss=1.0)
    with (claimed.path / "metrics.jsonl").open("ab") as file:
        file.write(damage + b"\n")
    with pytest.raises(UserError, match=r"metrics.jsonl: damaged"):
        claimed.metrics()


def test_one_other_digit_in_the_metrics_of_an_ended_run_is_damage(claimed):
    claimed.log(step=1, loss=1.0)
    claimed.finish(SUMMARY)
    (claimed.path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.5}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl: damaged: .*delete .*summary.json and run the command again"):
        claimed.metrics()


SUMMARY = RunSummary(
    status="finished", steps=10, tokens=640, bits_per_byte=2.5, loss=4.0, train_loss=3.9,
    tokens_per_second=1e3, mfu=0.1, parameters=1000, device="a CPU", dtype="float32",
)  # fmt: skip


def test_a_summary_comes_back_and_damage_to_it_is_a_message(claimed):
    assert claimed.summary() is None
    claimed.finish(SUMMARY)
    assert claimed.summary() == SUMMARY
    path = claimed.path / "summary.json"
    whole = path.read_bytes()
    for damage in (whole[:40], whole.replace(b"2.5", b"2.4"), b"\xff\xfe", json.dumps({"status": "odd"}).encode()):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"summary.json: damaged.*; delete the file and run the command again"):
            claimed.summary()


@pytest.mark.parametrize(
    "change",
    [
        {"bits_per_byte": -1}, {"bits_per_byte": None}, {"steps": -1}, {"tokens": -64}, {"loss": -0.5},
        {"tokens_per_second": 0.0}, {"mfu": -1.0}, {"bits_per_byte": 1e999}, {"steps": 10.5}, {"tokens": 640.0},
    ],
)  # fmt: skip
def test_a_summary_that_cannot_be_is_damage(claimed, change):
    (claimed.path / "summary.json").write_text(json.dumps(SUMMARY.model_dump() | change))
    with pytest.raises(UserError, match=r"summary.json: damaged; delete the file and run the command again"):
        claimed.summary()


def test_training_writes_nothing_through_a_link(claimed, tmp_path):
    """In someone else's folder, training appends to the metrics and the lock, and makes checkpoints in a folder."""
    (tmp_path / "victim").write_text("precious\n")
    (claimed.path / "metrics.jsonl").unlink(missing_ok=True)
    (claimed.path / "metrics.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"metrics\.jsonl: is a link; delete it$"):
        claimed.log(step=1)
    (claimed.path / ".lock").unlink(missing_ok=True)
    (claimed.path / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match=r"/\.lock: is a link; delete it$"), claimed.locked():
        pass
    (claimed.path / ".lock").unlink()
    (tmp_path / "elsewhere").mkdir()
    (claimed.path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"checkpoints: is a link to .*elsewhere, so files"), claimed.locked():
        pass
    assert ((tmp_path / "victim").read_text(), (tmp_path / "new").exists()) == ("precious\n", False)


@pytest.mark.parametrize(
    ("device", "is_set", "expected"), [("cpu", False, True), ("cuda", False, False), ("cuda", True, True)]
)
def test_a_run_on_a_gpu_is_recorded_as_not_deterministic(device, is_set, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("torch.are_deterministic_algorithms_enabled", lambda: is_set)
    assert environment(Device(device, torch.float32))["deterministic"] is expected
