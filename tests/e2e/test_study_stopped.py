"""An interrupted or killed `archlab study` continues to the same result and leaves no process behind."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from lab import lines, wait_until
from names import results, runs, summary


def workers_of(process):
    """Return the process ids of a study's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]


def gone(pids):
    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    return not any(running(pid) for pid in pids)


def blocks_ctrl_c(pid):
    blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
    return int(blocked, 16) >> (signal.SIGINT - 1) & 1


def metrics_lines(folder):
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("runs/*/metrics.jsonl"))


@pytest.fixture(scope="module")
def stopped(study, finished):
    """Start the study in another folder, and stop it again and again."""
    folder = study.folder / "stopped"

    def start():
        before = metrics_lines(folder)
        process = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "2")
        assert wait_until(lambda: metrics_lines(folder) > before + 15, process), process.communicate()
        return process, workers_of(process)

    return folder, start


def ended(process, workers):
    """Return the exit code and the messages. No worker may outlive the study."""
    out, err = process.communicate(timeout=60)
    assert gone(workers)
    assert "Traceback" not in err, err
    assert out == ""
    return process.returncode, err


def test_a_worker_that_is_killed_ends_no_other_run(study, finished):
    """Kill a worker, as the system does when memory runs out. The next command repeats only its run."""
    folder = study.folder / "out-of-memory"
    process = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "2")
    assert wait_until(lambda: metrics_lines(folder) > 15, process), process.communicate()
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "1 run failed; to try again, repeat the command" in err
    assert "its worker process died (exit code -9; a common reason is too little memory" in err
    assert "note: 1 run not finished and left out" in out or "note: 2 runs not finished" in out
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
    (paused,) = workers_of(first)
    os.kill(paused, signal.SIGSTOP)  # it stays in the middle of a run until the second process has trained the others
    second = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "1")
    assert wait_until(lambda: len(list(folder.glob("runs/*/summary.json"))) == 3, second), second.communicate()
    os.kill(paused, signal.SIGCONT)
    (printed, errors), (also_printed, _) = second.communicate(timeout=60), first.communicate(timeout=60)
    assert (printed == also_printed, second.returncode, first.returncode) == (True, 0, 0)
    assert errors.count("another process is training this run; waiting for that process") == 1
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


@pytest.mark.parametrize("wish", [signal.SIGTERM, signal.SIGHUP])
def test_a_study_that_must_leave_waits_for_its_runs_to_save(study, wish):
    """Only the command gets the signal, as in a container that ends with its first process."""
    folder = study.folder / wish.name
    process = study.start("study", "run", "names.yaml", "--out", folder, "--workers", "2")
    assert wait_until(lambda: metrics_lines(folder) > 15, process), process.communicate()
    workers = workers_of(process)
    process.send_signal(wish)
    code, errors = ended(process, workers)
    assert (code, "interrupted; to continue, repeat the command" in errors) == (130, True)
    begun = [run for run in runs(folder).values() if not (run / "summary.json").exists()]
    for run in begun:
        metrics = lines(run / "metrics.jsonl")
        assert not metrics or (run / "checkpoints" / f"step-{metrics[-1]['step']:08d}").is_dir()


def test_ctrl_c_while_workers_start(study, finished):
    process = study.start("study", "run", "names.yaml", "--out", "early", "--workers", "2")
    assert wait_until(lambda: len(workers_of(process)) == 2, process)
    workers = workers_of(process)
    assert all(map(blocks_ctrl_c, workers))  # only the study handles Ctrl-C, from the first moment of the workers on
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
        os.kill(worker, signal.SIGSTOP)  # they cannot end by themselves
    for _ in range(60):  # two signals at once count as one, so send them until it has ended
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
        if process.poll() is not None:
            break
    assert ended(process, workers)[0] == 130


def test_after_all_that_the_result_is_the_same(study, stopped, finished):
    folder, _ = stopped
    study.run("study", "run", "names.yaml", "--out", folder)
    assert results(folder) == finished[2]
