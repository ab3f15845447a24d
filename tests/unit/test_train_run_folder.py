"""A run's folder: whose it is, what a kill may leave in it, and who may write to it."""

import json
import subprocess
import sys

import pytest
from tiny import config

from archlab.errors import UserError
from archlab.files import TEMPORARY
from archlab.train import run_folder
from archlab.train.run_folder import RunFolder, RunSummary

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
    assert names(claimed) == ["config.yaml", "env.json", "tokenizer.json"]
    before = {path: path.read_bytes() for path in claimed.path.iterdir()}
    assert claimed.claim(config(), ENV, tokenizer) == []
    notes = claimed.claim(config(), {**ENV, "threads": 99}, tokenizer)
    assert notes == [f"begun with threads {ENV['threads']}, now 99: not bit for bit the uninterrupted run"]
    assert {path: path.read_bytes() for path in claimed.path.iterdir()} == before


def test_a_folder_made_beforehand_is_welcome_when_empty(tmp_path, tokenizer):
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").claim(config(), ENV, tokenizer)
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_another_config_is_refused_with_the_fields_that_differ(claimed, tokenizer):
    with pytest.raises(UserError) as refused:
        claimed.claim(config("train.lr=0.5", "model.norm.kind=layernorm"), ENV, tokenizer)
    message = str(refused.value)
    assert "holds a run of another config; name another folder" in message
    assert "  train.lr: 0.001 there, 0.5 here" in message
    assert "  model.norm.kind: rmsnorm there, layernorm here" in message
    assert "d_model" not in message


def test_fields_that_do_not_decide_the_result_may_change(claimed, tokenizer):
    claimed.claim(config("train.eval_every=3", "train.checkpoint_every=7"), ENV, tokenizer)


def test_the_same_tokens_may_lie_elsewhere_but_other_tokens_are_refused(claimed, tokenizer):
    claimed.claim(config(data="/elsewhere"), ENV, tokenizer)
    with pytest.raises(UserError, match=r"data.path: python-stdlib there, /elsewhere here"):
        claimed.claim(config(data="/elsewhere"), {**ENV, "corpus": "other"}, tokenizer)
    with pytest.raises(UserError, match="was begun with corpus c0ffee and cannot go on with other"):
        claimed.claim(config(), {**ENV, "corpus": "other"}, tokenizer)


@pytest.mark.parametrize(("what", "now"), [("dtype", "bfloat16"), ("device", "cuda")])
def test_another_number_format_or_device_is_refused(claimed, tokenizer, what, now):
    with pytest.raises(UserError, match=f"was begun with {what} {ENV[what]} and cannot go on with {now}"):
        claimed.claim(config(), {**ENV, what: now}, tokenizer)


@pytest.mark.parametrize("held", ["thesis.tex", "tokenizer.json", "env.json", "summary.json", ".hidden"])
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path, tokenizer, held):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / held).write_text("mine")
    with pytest.raises(UserError, match=f"holds something else \\({held}\\)"):
        folder.claim(config(), ENV, tokenizer)
    assert names(folder) == [held]
    assert (folder.path / held).read_text() == "mine"


def test_a_config_that_is_not_ours_is_left_alone(tmp_path, tokenizer):
    folder = RunFolder(tmp_path)
    (tmp_path / "config.yaml").write_text("lunch: noon")
    with pytest.raises(UserError, match="lunch"):
        folder.claim(config(), ENV, tokenizer)
    assert names(folder) == ["config.yaml", "tokenizer.json"]


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_a_file_is_no_folder(tmp_path, tokenizer, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file.*(is a file; --out names a folder|Not a directory)"):
        RunFolder(tmp_path / below).claim(config(), ENV, tokenizer)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kill_before", [1, 2, 3])
def test_a_kill_during_the_claim_leaves_a_folder_that_can_be_claimed(tmp_path, tokenizer, monkeypatch, kill_before):
    folder, write, written = RunFolder(tmp_path / "run"), run_folder.write_atomic, []

    def killed(path, content):
        written.append(path)
        if len(written) == kill_before:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(run_folder, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.claim(config(), ENV, tokenizer)
    monkeypatch.undo()
    folder.claim(config(), ENV, tokenizer)
    assert names(folder) == ["config.yaml", "env.json", "tokenizer.json"]


@pytest.mark.parametrize("damage", ["", "{", "\xff\xfe"])
def test_a_damaged_environment_is_a_message(claimed, tokenizer, damage):
    (claimed.path / "env.json").write_bytes(damage.encode("latin-1"))
    with pytest.raises(UserError, match=r"env.json: damaged"):
        claimed.claim(config(), ENV, tokenizer)


HOLD = """
import sys
from pathlib import Path
from archlab.train.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_train_one_run(claimed):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(claimed.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another process is training this run"), claimed.locked():
            pytest.fail("the lock did not hold")
        other.kill()
    with claimed.locked():
        pass  # the kernel frees the lock of a process that was killed


def test_what_a_kill_left_half_written_is_removed(claimed):
    (claimed.checkpoints / f"{TEMPORARY}1-step-00000003").mkdir(parents=True)
    (claimed.checkpoints / f"{TEMPORARY}1-step-00000003" / "model.safetensors").write_text("half")
    (claimed.path / f"{TEMPORARY}1-metrics.jsonl").write_text("half")
    with claimed.locked():
        assert names(claimed) == [".lock", "checkpoints", "config.yaml", "env.json", "tokenizer.json"]
        assert list(claimed.checkpoints.iterdir()) == []


def test_rewinding_drops_later_lines_and_a_torn_one(claimed):
    for step in range(1, 6):
        claimed.log(step=step, loss=step / 3, lr=0.1)
    metrics = claimed.path / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"step": 2, "lo')
    assert [line["step"] for line in claimed.metrics()] == [1, 2, 3, 4, 5]
    claimed.rewind(3)
    assert metrics.read_text().endswith("}\n")
    claimed.log(step=4, loss=0.5, lr=0.1)
    assert [(line["step"], line["loss"]) for line in claimed.metrics()] == [
        (1, 1 / 3),
        (2, 2 / 3),
        (3, 1.0),
        (4, 0.5),
    ]


def test_rewinding_to_the_start_forgets_everything(claimed):
    claimed.rewind(0)
    claimed.log(step=1, loss=1.0)
    claimed.rewind(0)
    assert claimed.metrics() == []


@pytest.mark.parametrize("damage", [b"no json\n", b"\xff\xfe\n", b"\0\0\0\n"])
def test_damaged_metrics_are_a_message(claimed, damage):
    claimed.log(step=1, loss=1.0)
    with (claimed.path / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    with pytest.raises(UserError, match=r"metrics.jsonl: damaged"):
        claimed.rewind(1)


SUMMARY = RunSummary(
    status="finished", steps=10, tokens=640, bits_per_byte=2.5, loss=4.0, train_loss=3.9,
    tokens_per_second=1e3, mfu=0.1, parameters=1000, device="a CPU", dtype="float32",
)  # fmt: skip


def test_a_summary_comes_back_and_damage_to_it_is_a_message(claimed):
    assert claimed.summary() is None
    claimed.finish(SUMMARY)
    assert claimed.summary() == SUMMARY
    path = claimed.path / "summary.json"
    for damage in (path.read_bytes()[:40], b"\xff\xfe", json.dumps({"status": "odd"}).encode()):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"summary.json: damaged; remove the file and run again"):
            claimed.summary()
