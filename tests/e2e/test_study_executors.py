"""A study that is killed, stopped and moved between a Ray cluster of two nodes, submitit and this machine.

Its result stays the same.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
import torch
from attack import run_here, silent
from lab import lines, wait_until
from names import results, runs
from ray.cluster_utils import Cluster

from archlab.study.executors.local import Local
from archlab.study.executors.named import make_executor
from archlab.study.executors.ray import Ray
from archlab.study.runner import Study
from archlab.study.study_file import read_study

STUDY = """
question: How well does it train?
base: tiny.yaml
set: {train.checkpoint_every: 20, train.eval_every: 100}
budget: {tokens: 19200}
seeds: 2
arms: {first: {}}
"""
"""Write a study with two runs of 300 steps."""


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes with one core each, like two machines."""
    with pytest.MonkeyPatch.context() as patch:
        # Workers of Ray have a low priority (nice 15). On a busy machine they would not run at all.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        sizes = {"num_cpus": 1, "memory": 4 * 2**30, "object_store_memory": 80 * 2**20}
        found = Cluster(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
        found.add_node(**sizes)
        patch.setenv("RAY_ADDRESS", found.address)
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture(scope="module")
def folder(shared_lab):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ARCHLAB_CACHE", "OMP_NUM_THREADS"):
            patch.setenv(name, shared_lab.env[name])
        patch.chdir(shared_lab.folder)
        (shared_lab.folder / "study.yaml").write_text(STUDY)
        torch.set_num_threads(1)
        yield shared_lab.folder


@pytest.fixture(scope="module")
def undisturbed(folder):
    """Return the results of one process that trains one run after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Local, "run_all", run_here)
        run(folder / "undisturbed", Local())
    return results(folder / "undisturbed")


def run(out, executor, on_progress=silent):
    name, config = read_study("study.yaml")
    return Study(name, config, out, executor).run(on_progress)


def holder(run):
    """Return the process that trains a run: the one with its lock open."""
    lock = str(run / ".lock")
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(opened) == lock:
                return int(opened.parts[2])
        except OSError:  # it has ended, or belongs to another user
            continue
    return None


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def updates(run):
    return [line for line in lines(run / "metrics.jsonl") if "lr" in line]


def wait_for(true, seconds=120):
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


def both_at_work(out):
    """Return the two runs once each has made 25 steps, and so has a checkpoint of step 20."""
    found = list(runs(out).values()) if (out / "runs").is_dir() else []
    return found if len(found) == 2 and all(len(updates(run)) > 25 for run in found) else None


def test_from_ray_to_here_and_back(cluster, shared_lab, folder, undisturbed):
    """A worker is killed. Ctrl-C stops the study on the cluster, then on this machine. It ends on the cluster."""
    out = folder / "moved"
    shared_lab.env["RAY_ADDRESS"] = cluster.address
    process = shared_lab.start("study", "run", "study.yaml", "--out", out, "--executor", "ray")
    assert wait_until(lambda: both_at_work(out), process, 120), process.communicate()
    killed, other = both_at_work(out)
    workers = [holder(killed), holder(other)]
    assert len({parent(worker) for worker in workers}) == 2, "each node has one"
    os.kill(workers[0], signal.SIGSTOP)
    before = updates(killed)
    os.kill(workers[0], signal.SIGKILL)
    assert wait_until(lambda: len(updates(killed)) > len(before), process, 120), process.communicate()
    assert holder(killed) not in (None, workers[0])
    assert updates(killed)[:20] == before[:20], "its speeds too: it went on from the checkpoint"
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "note: first, seed " in said
    assert "its worker was lost (WorkerCrashedError); the run continues from its last checkpoint" in said
    saved(killed)
    stopped_here(out)
    run(out, Ray())
    assert results(out) == undisturbed


def stopped_here(out):
    """Continue for a few steps on this machine, and stop."""
    before = {folder: len(updates(folder)) for folder in runs(out).values()}

    def stop(progress):
        if any(len(updates(folder)) > n + 5 for folder, n in before.items()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, Local(2), lambda _: stop)
    for folder in before:
        saved(folder)


def saved(run):
    """Check that a stopped run has its last checkpoint, and that no process holds it."""
    assert holder(run) is None
    if not (run / "summary.json").exists():
        assert (run / "checkpoints" / f"step-{updates(run)[-1]['step']:08d}").is_dir()


def test_a_job_that_has_to_leave_is_queued_again(folder, undisturbed):
    """submitit runs on this machine. It sends SIGUSR2, as Slurm does when a job's time is over."""
    out = folder / "jobs"

    def send_away():
        """Return once another process trains the run of the job that was sent away."""
        (leaving, _) = wait_for(lambda: both_at_work(out))
        first = holder(leaving)
        os.kill(first, signal.SIGUSR2)
        return wait_for(lambda: holder(leaving) not in (None, first))

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(send_away)
        run(out, make_executor("slurm", slurm=["cluster=local"]))
        assert sender.result()
    assert results(out) == undisturbed
    assert list((out / "slurm").rglob("*_log.*")) == [], "jobs that ended well leave nothing behind"
