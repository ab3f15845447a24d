"""`archlab train`, killed or interrupted and repeated, gives the same result as an uninterrupted run, bit by bit."""

import random
import signal
import time

import pytest
import torch
from lab import lines, wait_until
from safetensors.torch import load_file

STEPS = 300
TIMES = ("tokens_per_second",)


def outcome(run):
    """Return every line of metrics without the times, and the final weights."""
    metrics = [{k: v for k, v in line.items() if k not in TIMES} for line in lines(run / "metrics.jsonl")]
    checkpoints = list((run / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [f"step-{STEPS:08d}"]
    return metrics, load_file(checkpoints[0] / "model.safetensors")


def assert_same(found, expected):
    (metrics, weights), (expected_metrics, expected_weights) = found, expected
    assert metrics == expected_metrics
    assert weights.keys() == expected_weights.keys()
    assert all(torch.equal(weights[name], expected_weights[name]) for name in weights)


@pytest.fixture(scope="module")
def uninterrupted(shared_lab):
    shared_lab.run("train", "tiny.yaml", "--out", "whole")
    metrics, weights = outcome(shared_lab.folder / "whole")
    assert [line["step"] for line in metrics if "grad_norm" in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in metrics if "bits_per_byte" in line] == list(range(0, STEPS + 1, 25))
    return metrics, weights


def test_killed_at_random_moments(shared_lab, uninterrupted):
    seed = time.time_ns()
    print(f"moments drawn with seed {seed}")  # pytest shows it when the test fails
    draw, run = random.Random(seed), shared_lab.folder / "killed"
    kills = 0
    while True:
        process = shared_lab.start("train", "tiny.yaml", "--out", run)
        enough = len(lines(run / "metrics.jsonl")) + draw.randint(50, 110)
        if kills == 0:
            time.sleep(draw.uniform(0.2, 2.5))  # at any moment from the start of the interpreter
        elif not wait_until(lambda n=enough: len(lines(run / "metrics.jsonl")) >= n, process):
            break
        process.kill()
        process.communicate()
        kills += 1
        assert kills < 30
    assert process.communicate()[1].count("Traceback") == process.returncode == 0
    assert kills >= 3
    assert_same(outcome(run), uninterrupted)


def test_interrupted_by_ctrl_c_then_politely_killed(shared_lab, uninterrupted):
    run = shared_lab.folder / "interrupted"
    for number, at in ((signal.SIGINT, 47), (signal.SIGTERM, 133)):
        process = shared_lab.start("train", "tiny.yaml", "--out", run)
        assert wait_until(lambda at=at: len(lines(run / "metrics.jsonl")) >= at, process)
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == 130
        assert "Traceback" not in err
        done = lines(run / "metrics.jsonl")[-1]["step"]
        assert max(path.name for path in (run / "checkpoints").iterdir()) == f"step-{done:08d}"
        assert not (run / "summary.json").exists()
    shared_lab.run("train", "tiny.yaml", "--out", run)
    assert_same(outcome(run), uninterrupted)


def test_a_finished_run_is_not_trained_again(shared_lab, uninterrupted):
    run = shared_lab.folder / "whole"
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    again = shared_lab.run("train", "tiny.yaml", "--out", "whole")
    assert "bits per byte of held-out text after 19,200 tokens" in again.stdout
    files.pop(run / ".lock")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files} == files
    assert_same(outcome(run), uninterrupted)
