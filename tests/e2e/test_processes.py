"""One run in several processes under torchrun: the same losses when stopped, killed or resumed with other numbers of processes."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab import lines, wait_until

SAME = 1e-5
"""Tolerance between losses of the same run, whose float32 sums have another order."""

CONFIGS = Path(__file__).with_name("processes.yaml")
PLUG_INS = Path(__file__).parents[2] / "docs" / "plugins.md"


class Torchrun:
    """`torchrun` in the folder of a laboratory."""

    def __init__(self, lab):
        self.lab = lab

    def start(self, n, *arguments, **options):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", *arguments]
        return subprocess.Popen(
            [*map(str, command)], cwd=self.lab.folder, env=self.lab.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, **options,
        )  # fmt: skip

    def run(self, n, *arguments):
        process = self.start(n, *arguments)
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
        return out, err


@pytest.fixture(scope="module")
def torchrun(shared_lab):
    return Torchrun(shared_lab)


def losses(run):
    return [line["loss"] for line in lines(run / "metrics.jsonl") if "lr" in line]


def scores(run):
    return [line["held_out_loss"] for line in lines(run / "metrics.jsonl") if "held_out_loss" in line]


def test_every_component_trains_as_in_one_process(torchrun):
    """One start of torchrun trains all configs of processes.yaml, and so does one process. The plug-ins are those of docs/plugins.md.

    The teacher of `distilled` is the run `copies` of one process."""
    worker, folder = Path(__file__).with_name("train_many.py"), torchrun.lab.folder
    for text, name in re.findall(r"^(# (\w+\.py)\n.*?)^```", PLUG_INS.read_text(), re.M | re.S):
        (folder / name).write_text(text)
    alone = subprocess.run(
        [sys.executable, worker, CONFIGS, folder / "alone"],
        cwd=folder, env=torchrun.lab.env, capture_output=True, text=True,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    torchrun.run(4, worker, CONFIGS, folder / "four")
    names = sorted(path.name for path in (folder / "alone").iterdir())
    assert names == [
        "components", "copies", "distilled", "divided", "dropped", "lora", "mixture", "pairs", "pieces", "yours",
        "yours_from_scratch",
    ]  # fmt: skip
    for name in names:
        one, four = folder / "alone" / name, folder / "four" / name
        assert len(losses(one)) == len(losses(four)) == 4, name
        assert losses(four) == pytest.approx(losses(one), rel=SAME), name
        assert scores(four) == pytest.approx(scores(one), rel=SAME), name


RUN = ("-m", "archlab", "train", "tiny.yaml", "train.batch_tokens=192", "train.micro_batch_tokens=32",
       "train.tokens=9600", "train.optimizer.kind=muon", "--out")  # fmt: skip
"""Muon keeps one state per matrix, and AdamW two per other parameter. The run covers all kinds of states."""


def test_stopped_and_resumed_with_other_numbers_of_processes(torchrun):
    """Three processes save, then one. No window is lost or repeated, because the losses are those of one process."""
    lab = torchrun.lab
    lab.run(*RUN[2:], "whole-192")
    run = lab.folder / "elastic"
    process = torchrun.start(3, *RUN, run)
    assert wait_until(lambda: len(losses(run)) >= 20, process), process.communicate()[1]
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert "[rank" not in err, "a process ended by an exception; torchrun's own traceback says that it was stopped"
    assert "processes 3: shard 3; each holds" in err
    assert len(list(max((run / "checkpoints").iterdir()).glob("shard-*"))) == 3
    lab.run("generate", run, "--prompt", "the cat", "--max-new-tokens", "2")
    lab.run(*RUN[2:], run)
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics if "lr" in line] == list(range(1, 51))
    assert losses(run) == pytest.approx(losses(lab.folder / "whole-192"), rel=SAME)


def test_a_process_that_is_killed_ends_the_others_and_the_run_goes_on(torchrun):
    run = torchrun.lab.folder / "killed-rank"
    process = torchrun.start(2, *RUN, run)
    assert wait_until(lambda: len(losses(run)) >= 25, process), process.communicate()[1]
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL)" in err
    torchrun.lab.run(*RUN[2:], run)
    assert losses(run) == pytest.approx(losses(torchrun.lab.folder / "whole-192"), rel=SAME)


def test_a_disk_that_takes_no_more_ends_all_with_one_sentence(torchrun):
    """Files may have at most 20,000 bytes, which is less than a part of a checkpoint."""
    run, limit = torchrun.lab.folder / "full", (20_000, 20_000)
    process = torchrun.start(2, *RUN, run, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    # By the process that failed first, and by torchrun at the end. The other process says it, too, unless torchrun stops
    # it before.
    assert err.count("cannot write: File too large") in (2, 3)
    assert "[rank" not in err
    assert not any((run / "checkpoints").iterdir())


def test_what_cannot_be_divided_is_said_once(torchrun):
    process = torchrun.start(2, *RUN, "refused", "parallel.replicate=3")
    _, err = process.communicate(timeout=60)
    assert err.count("parallel.replicate  3, with 2 processes; allowed: a divisor of the number of processes") == 2
    assert not (torchrun.lab.folder / "refused").exists()


def test_two_processes_begin_from_trained_weights_as_one_does(torchrun):
    lab, folder = torchrun.lab, torchrun.lab.folder
    lab.run("train", "tiny.yaml", "train.tokens=1280", "--out", "base")
    begin = ("train", "base", "model.attention.n_kv_heads=1", "--out")
    one = lab.run(*begin, "begun").stderr
    _, two = torchrun.run(2, "-m", "archlab", *begin, folder / "begun-2")
    assert "fewer key/value heads (approximate)" in two
    changes = [re.findall(r"a KL divergence of ([\d.e-]+)", text) for text in (one, two)]
    assert [float(change) for change in changes[1]] == pytest.approx([float(change) for change in changes[0]], rel=0.01)
    assert losses(folder / "begun-2") == pytest.approx(losses(folder / "begun"), rel=SAME)
    assert scores(folder / "begun-2") == pytest.approx(scores(folder / "begun"), rel=SAME)
