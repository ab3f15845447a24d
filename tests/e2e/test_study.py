"""`archlab study` from the first run to the report: enlarged, interrupted, killed, and read again."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from lab import lines, wait_until

STUDY = """
question: Does a second name help?
base: tiny.yaml
set: {train.checkpoint_every: 20, train.eval_every: 50}
budget: {tokens: 9600}
seeds: 2
arms:
  first: {}
  again: {}
  wild: {train.lr: 1.0e+38, train.warmup: 0}
labels: {again: the same again}
"""


@pytest.fixture(scope="module")
def study(shared_lab):
    (shared_lab.folder / "names.yaml").write_text(STUDY)
    return shared_lab


def runs(folder):
    return {path.name: path for path in (folder / "runs").iterdir()}


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def results(folder):
    """What must not depend on when and how often the study was stopped."""
    return [
        {key: arm[key] for key in ("name", "bits_per_byte", "comparison", "curves", "divergences", "parameters")}
        for arm in summary(folder)["arms"]
    ]


@pytest.fixture(scope="module")
def finished(study):
    """The study's folder after an uninterrupted run, and what was printed."""
    done = study.run("study", "run", "names.yaml", "--out", "finished")
    return study.folder / "finished", done.stdout, results(study.folder / "finished")


def test_one_config_under_two_names_is_not_distinguishable(finished):
    folder, printed, (first, again, _) = finished
    assert first["bits_per_byte"] == again["bits_per_byte"]
    assert set(first["bits_per_byte"]) == {"0", "1"}
    assert again["comparison"]["verdict"] == "not distinguishable"
    assert (again["comparison"]["low"], again["comparison"]["high"]) == (0, 0)
    assert "the same again is not distinguishable from first (identical results" in " ".join(printed.split())
    assert len(runs(folder)) == 4


def test_a_diverging_arm_is_counted(finished):
    folder, printed, (_, _, wild) = finished
    assert wild["bits_per_byte"] == {"0": None, "1": None}
    assert (wild["divergences"], wild["comparison"]["verdict"]) == (2, "diverged")
    assert "wild diverged on 2 of 2 seeds" in " ".join(printed.split()).lower()
    ended = [json.loads((run / "summary.json").read_text())["status"] for run in runs(folder).values()]
    assert sorted(ended) == ["diverged", "diverged", "finished", "finished"]


def test_the_report_is_there_and_named(finished):
    folder, printed, _ = finished
    assert f"report: {folder / 'report.html'}" in printed
    page = (folder / "report.html").read_text()
    assert "Does a second name help?" in page
    assert not re.search(r'(src|href)="https?:', page)
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_reporting_again_needs_only_the_runs(study, finished):
    folder, printed, expected = finished
    for name in ("report.html", "report.png", "summary.json"):
        (folder / name).unlink()
    again = study.run("study", "report", folder)
    assert again.stdout == printed
    assert results(folder) == expected
    assert (folder / "report.html").exists()
    assert (folder / "report.png").exists()


def test_one_more_seed_trains_only_that_seed(study, finished):
    folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*")}
    (study.folder / "more.yaml").write_text(STUDY.replace("seeds: 2", "seeds: 3"))
    done = study.run("study", "run", "more.yaml", "--out", folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    new = set(runs(folder)) - {path.parent.name for path in before}
    seeds = [re.search(r"seed: (\d+)", (folder / "runs" / n / "config.yaml").read_text())[1] for n in new]
    assert seeds == ["2", "2"]
    assert set(results(folder)[0]["bits_per_byte"]) == {"0", "1", "2"}
    assert done.stderr.count("seed 2") == 2
    assert "seed 0" not in done.stderr


# --- stopped on the way ---------------------------------------------------------------------------


def workers_of(process):
    """Process ids of a study's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]


def gone(pids):
    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    return not any(running(pid) for pid in pids)


def metrics_lines(folder):
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("runs/*/metrics.jsonl"))


@pytest.fixture(scope="module")
def stopped(study, finished):
    """Starts the study in another folder, and stops it on the way again and again."""
    folder = study.folder / "stopped"

    def start():
        before = metrics_lines(folder)
        process = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "2")
        assert wait_until(lambda: metrics_lines(folder) > before + 15, process), process.communicate()
        return process, workers_of(process)

    return folder, start


def ended(process, workers):
    """Exit code and messages; no worker may outlive the study."""
    out, err = process.communicate(timeout=60)
    assert gone(workers)
    assert "Traceback" not in err, err
    assert out == ""
    return process.returncode, err


def test_a_worker_that_is_killed_ends_no_other_run(study, finished):
    """As the system does when memory runs out. Run again, only that run is tried again."""
    folder = study.folder / "out-of-memory"
    process = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "2")
    assert wait_until(lambda: metrics_lines(folder) > 15, process), process.communicate()
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "1 run failed; run again to try again" in err
    assert "its worker process died (exit code -9; often that is too little memory" in err
    assert "note: 1 run not finished, and left out" in out or "note: 2 runs not finished" in out
    (label, why), *others = summary(folder)["failed"].items()
    assert (others, why in err, f"{label}: failed" in err) == ([], True, True)
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in folder.glob("runs/*") if ended_well(run)}
    assert len(before) == 3
    again = study.run("study", "run", "names.yaml", "--out", folder)
    assert again.stderr.count(label) == again.stderr.count("seed") == 1
    assert {run: (run / "summary.json").stat().st_mtime_ns for run in before} == before
    assert results(folder) == finished[2]


def ended_well(run):
    return (run / "summary.json").exists()


def test_a_second_process_leaves_a_run_to_the_first_and_waits_for_it(study, finished):
    folder = study.folder / "twice"
    first = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "1")
    assert wait_until(lambda: metrics_lines(folder) > 15, first), first.communicate()
    (held,) = workers_of(first)
    os.kill(held, signal.SIGSTOP)  # in the middle of a run, until the second process has made the others
    second = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "1")
    assert wait_until(lambda: len(list(folder.glob("runs/*/summary.json"))) == 3, second), second.communicate()
    os.kill(held, signal.SIGCONT)
    (printed, told), (also_printed, _) = second.communicate(timeout=60), first.communicate(timeout=60)
    assert (printed == also_printed, second.returncode, first.returncode) == (True, 0, 0)
    assert told.count("another process trains it; it is waited for") == 1
    assert results(folder) == finished[2]
    for run in runs(folder).values():
        steps = [line["step"] for line in lines(run / "metrics.jsonl") if "lr" in line]
        assert steps == list(range(1, len(steps) + 1))


def test_ctrl_c_stops_all_of_it_and_keeps_what_was_done(stopped):
    folder, start = stopped
    process, workers = start()
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process, workers)[0] == 130
    begun = [run for run in runs(folder).values() if not (run / "summary.json").exists()]
    done = {run: lines(run / "metrics.jsonl") for run in begun}
    assert any(done.values())
    for run, metrics in done.items():
        checkpoint = f"step-{metrics[-1]['step']:08d}" if metrics else ""
        assert (run / "checkpoints" / checkpoint).is_dir() or not metrics


def test_ctrl_c_while_workers_start(study, finished):
    process = study.start("study", "run", "names.yaml", "--out", "early", "--workers", "2")
    assert wait_until(lambda: len(workers_of(process)) == 2, process)
    workers = workers_of(process)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process, workers)[0] == 130


def test_workers_end_when_the_study_is_killed(stopped):
    _, start = stopped
    process, workers = start()
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while not gone(workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_second_ctrl_c_ends_the_workers_at_once(stopped):
    _, start = stopped
    process, workers = start()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # so that they cannot end politely
    for _ in range(60):  # two that come at once are one, so until it has ended
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
        if process.poll() is not None:
            break
    assert ended(process, workers)[0] == 130


def test_after_all_that_the_result_is_the_same(study, stopped, finished):
    folder, _ = stopped
    study.run("study", "run", "names.yaml", "--out", folder)
    assert results(folder) == finished[2]


# --- tuning ---------------------------------------------------------------------------------------


def test_tuning_picks_the_best_and_warns_at_the_edge(study):
    (study.folder / "tune.yaml").write_text(
        "extends: names.yaml\narms: {only: {}}\nlabels: {}\ntune: {train.lr: [1.0e-5, 1.0e-3, 1.0e-2]}\n"
        "budget: {tokens: 3200}\n"
    )
    done = study.run("study", "run", "tune.yaml", "--out", "tuned")
    (arm,) = summary(study.folder / "tuned")["arms"]
    scores = {
        float(rate): float(score)
        for rate, score in re.findall(r"only, train.lr=(\S+), seed 1000: (\S+) bits/byte", done.stderr)
    }
    assert len(scores) == 3
    assert arm["tuned"] == {"train.lr": min(scores, key=scores.__getitem__)} == {"train.lr": 0.01}
    assert "note: only: train.lr = 0.01 won at the edge of its grid" in done.stdout
    assert arm["config"]["train"]["lr"] == 0.01
