"""Executors of a study's runs: resources of a run, lost, busy and broken runs, and too little memory."""

import os
import re
import subprocess
import sys
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.pricing.summary import step_memory_of
from archlab.study.executors import elsewhere, local
from archlab.study.executors.elsewhere import ATTEMPTS, BrokenError, LostError, run_elsewhere
from archlab.study.executors.executor import (
    MOST_BESIDE_A_GPU,
    Errand,
    RunProgress,
    default_threads,
    needs,
    needs_of,
    train_run,
    with_resolved_device,
)
from archlab.study.executors.local import default_workers, visible_gpus
from archlab.study.executors.named import make_executor
from archlab.study.executors.slurm import slurm_options
from archlab.study.runs import Run
from archlab.training import loop as training
from archlab.training.callback import Callback
from archlab.training.code_digest import code_digest
from archlab.training.device import Device, choose_device, planned_device
from archlab.training.out_of_memory import what_would_fit
from archlab.training.run_folder import RunFolder
from archlab.training.train import train

GIB = 2**30
ON_GPU = ("train.device=cuda", "train.dtype=bfloat16")


def some(n: int = 1, *overrides: str) -> list[Run]:
    return [Run(f"run {i}", tiny.config(f"train.seed={i}", *overrides), "", 1) for i in range(n)]


class Played:
    """A place whose tasks follow `script`: label of a run -> ends of its tasks, in order."""

    retry_after = 0.05

    def __init__(self, script: dict[str, list[object]]) -> None:
        self.script, self.stopped = script, list[tuple[str, int]]()
        self.handed_out, self.most = Counter[str](), 0

    def start(self, runs):
        self.handed_out.update(run.label for run in runs)
        self.most = max(self.most, len(runs))
        return [(run.label, self.handed_out[run.label]) for run in runs]

    def ended(self, tasks, seconds):
        return [task for task in tasks if self.script[task[0]]]

    def result(self, task):
        found = self.script[task[0]].pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self, tasks):
        self.stopped += tasks

    kill = stop


def ended(run: Run, **values) -> list[RunProgress]:
    return [RunProgress(run, 0.0, **values)]


def test_runs_that_are_lost_busy_or_broken(tmp_path: Path) -> None:
    """Each run is submitted as often as necessary, and no run ends another."""
    a, b, c, d = some(4)
    place = Played(
        {
            "run 0": [LostError("gone"), LostError("gone"), ended(a, summary="done")],
            "run 1": [LostError(f"gone {i}") for i in range(ATTEMPTS)],
            "run 2": [*(ended(c, busy=True) for _ in range(ATTEMPTS + 2)), ended(c, summary="done")],
            "run 3": [BrokenError("no archlab there")],
        }
    )
    reports: list[RunProgress] = []
    failed = run_elsewhere(place, [a, b, c, d], tmp_path, None, reports.append)
    assert place.handed_out == {"run 0": 3, "run 1": ATTEMPTS, "run 2": ATTEMPTS + 3, "run 3": 1}
    assert {one.run.label: one.failed for one in failed} == {
        "run 1": f"its worker was lost {ATTEMPTS} times (gone {ATTEMPTS - 1}; a common reason is too little memory)",
        "run 3": "no archlab there",
    }
    notes = [one.note for one in reports if one.run.label == "run 0" and one.note]
    assert notes == ["its worker was lost (gone); the run continues from its last checkpoint"] * 2
    assert sum(one.busy for one in reports) == ATTEMPTS + 2
    assert place.stopped == []


def test_no_more_at_once_than_asked_for(tmp_path: Path) -> None:
    runs = some(5)
    place = Played({run.label: [ended(run, summary="done")] for run in runs})
    assert run_elsewhere(place, runs, tmp_path, 2, lambda _: None) == []
    assert (place.most, place.handed_out.total()) == (2, 5)


def test_what_is_underway_is_stopped(tmp_path: Path) -> None:
    """An interrupt in a callback also stops the tasks at work."""
    runs = some(2)
    place = Played({"run 0": [ended(runs[0], failed="bad")], "run 1": []})

    def tell(_: RunProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_elsewhere(place, runs, tmp_path, None, tell)
    assert place.stopped == [("run 1", 1)]


def test_how_far_a_run_is_stands_in_its_folder(tmp_path: Path) -> None:
    (run,) = some()
    watch = elsewhere._Watch(tmp_path)
    assert watch.progress_of(run) is None
    folder = RunFolder(run.folder(tmp_path))
    folder.path.mkdir(parents=True)
    for step in (0, 1, 4):
        folder.log(step=step, probes={"long": "x" * 5000} if step == 1 else {})
    (folder.path / "metrics.jsonl").open("a").write('{"step": 9, "tok\n')  # an incomplete line
    assert [moved.share_done for moved in watch.look([run])] == [0.4]
    folder.log(step=5)
    assert list(watch.look([run])) == [], "not again so soon, however many tasks end meanwhile"
    assert watch.progress_of(run).share_done == 0.5
    assert watch.progress_of(run) is None


def test_an_errand_on_a_machine_that_cannot_do_it(tmp_path: Path) -> None:
    (run,) = some()
    for errand, why in (
        (
            Errand(tmp_path / "nowhere", tmp_path, code_digest()),
            f"could not find the folder {tmp_path / 'nowhere'}; put the study in a folder that",
        ),
        (
            Errand(tmp_path, tmp_path, "another"),
            "has another version of archlab's code than the machine that runs the study",
        ),
    ):
        (report,) = errand(run)
        assert why in str(report.failed)


@pytest.mark.slow
def test_an_errand_tells_its_notes_and_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of texts are relative to the current folder of the command."""
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tiny.write_text(tmp_path)
    run = replace(some(1)[0], config=tiny.config("model.vocab_size=400", data="text.txt"), corpus=None)
    errand = Errand.of(Path("."))
    monkeypatch.chdir("/")
    note, last = errand(run)
    assert "embedding rows from" in str(note.note)
    assert (last.failed, last.summary and last.summary.status) == (None, "finished")


def test_auto_is_decided_once_for_all_machines() -> None:
    """The process that names the run decides."""
    (run,) = some(1, "train.dtype=auto", "train.device=auto")
    fixed, here = with_resolved_device(run), choose_device(run.config.train)
    assert (fixed.config.train.device, fixed.config.train.dtype) == (here.type, here.format)
    assert fixed.name == run.name


def test_a_run_for_a_gpu_can_be_planned_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert planned_device(tiny.config(*ON_GPU).train) == Device("cuda", torch.bfloat16)
    with pytest.raises(UserError, match=r"train.dtype: auto, but this machine has no GPU"):
        planned_device(tiny.config("train.device=cuda", "train.dtype=auto").train)
    with pytest.raises(UserError, match=r"train.device: cuda, but torch finds no CUDA device here"):
        local.Local().run_all(some(1, *ON_GPU), Path("nowhere"), lambda _: None)


def test_what_a_run_needs() -> None:
    small, large = load_config("tiny-llama"), load_config("tiny-llama", "model.d_model=1024")
    here = ("train.device=cpu", "train.dtype=float32")
    configs = [load_config("tiny-llama", *here, *more) for more in ((), ("model.d_model=1024",))]
    wanted = needs_of([Run("", config, "", threads=3) for config in configs])
    assert (wanted.cores, wanted.gpus) == (3, 0)
    peak = step_memory_of(configs[1], "float32").peak
    assert peak + GIB < wanted.memory < 2 * peak + GIB, "enough for the larger one, and not all of a machine"
    on_gpu = needs([load_config("tiny-llama", *ON_GPU)], threads=2)
    resident = training_memory(parameters(small.model), small.train.optimizer).total
    assert (on_gpu.gpus, on_gpu.memory < 4 * GIB + resident) == (1, True)
    assert re.fullmatch(r"2 cores, 1 GPU and [\d.]+ GiB of memory", str(on_gpu))
    assert parameters(large.model).total > parameters(small.model).total


def test_threads_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models train side by side, a large one with all cores, and one run on each GPU."""
    monkeypatch.setattr("archlab.study.executors.executor.cores", lambda: 32)
    monkeypatch.setattr("archlab.study.executors.local.cores", lambda: 32)
    small, large = tiny.config(), load_config("tiny-llama", "model.d_model=1024", "train.device=cpu")
    assert (default_threads([small]), default_workers(1, [])) == (1, 32)
    assert (default_threads([small, large]), default_workers(32, [])) == (32, 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert default_threads([tiny.config(*ON_GPU)]) == 32 // 8
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert default_threads([tiny.config(*ON_GPU)]) == MOST_BESIDE_A_GPU
    assert default_workers(8, ["0", "1"]) == 2


def test_each_worker_has_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs have the names that this process may use. The worker after a lost one gets its GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, 5,7")
    assert visible_gpus() == ["GPU-a", "5", "7"]
    workers = [local._Worker(None, gpu=gpu) for gpu in ("GPU-a", "7")]
    assert local._least_used(visible_gpus(), workers) == "5"
    assert local._least_used([], workers) is None
    seen: list[str] = []

    class OneRun:
        def recv(self) -> Run:
            if seen:
                raise EOFError
            return some()[0]

        def send(self, _: object) -> None: ...

    def trained(run: Run, *_: object) -> RunProgress:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return RunProgress(run, 1.0)

    monkeypatch.setattr(local, "train_run", trained)
    local._worker_main(OneRun(), tmp_path, "7")
    assert seen == ["7"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "rey"}, "unknown executor 'rey'; did you mean ray? allowed: local, ray, slurm"),
        ({"name": "ray", "slurm": ["time=3"]}, "slurm: 'time=3' needs the executor slurm, but executor is 'ray'"),
        (
            {"name": "slurm", "slurm": ["partitoin=a"]},
            "unknown option 'partitoin'; did you mean partition? allowed: account",
        ),
        ({"name": "slurm", "slurm": ["time=soon"]}, "slurm: time is 'soon'; allowed: a number of minutes, at least 1"),
        ({"name": "slurm", "slurm": ["cluster=mine"]}, "slurm: cluster is 'mine'; allowed: slurm, local"),
        ({"name": "slurm"}, "executor slurm: could not find sbatch"),
    ],
)
def test_invalid_executors_are_refused(arguments: dict, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=re.escape(why)):
        make_executor(**arguments)


def test_options_of_jobs() -> None:
    found = slurm_options(["partition=gpu", "time=120", "setup=module load cuda"])
    assert found == {"partition": "gpu", "time": 120, "setup": ["module load cuda"]}


def test_what_submitit_writes_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the script of an array, without a Slurm installation."""
    from submitit.slurm.slurm import SlurmExecutor

    from archlab.study.executors import slurm

    written: list[str] = []

    def submit(self, command):
        written.append(Path(command[-1]).read_text())
        raise OSError("sbatch: error: invalid partition specified: gpu")

    (tmp_path / "bin").mkdir()
    for tool in ("srun", "sbatch"):
        (tmp_path / "bin" / tool).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("submitit.core.utils.CommandFunction.__call__", lambda self: submit(self, self.command))
    assert SlurmExecutor.affinity() == 2
    place = slurm._Queue(Errand.of(tmp_path), needs_of(some(2, *ON_GPU)), slurm_options(["partition=gpu", "time=90"]))
    with pytest.raises(UserError, match="sbatch refused the jobs: sbatch: error: invalid partition"):
        place.start(some(2, *ON_GPU))
    flags = set(re.findall(r"#SBATCH --(\S+)", written[0]))
    assert {"array=0-1%2", "partition=gpu", "time=90", "cpus-per-task=1", "gpus-per-node=1", "nodes=1"} <= flags
    assert {"signal=USR2@90", "open-mode=append", "mem=5GB"} <= flags


LARGE = ("train.batch_tokens=65536", "train.seq_len=1024", *ON_GPU)


def fits(config: Config, device: Device, free: int) -> dict[str, str]:
    """Return field -> value of the advice."""
    return dict(re.findall(r"train\.(\w+)=(\w+)", what_would_fit(config, device, free)))


def test_what_would_fit_is_the_most_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice follows `archlab cost`, with a tenth of the memory left over, and never repeats what has just failed."""
    monkeypatch.setattr(Device, "name", "a GPU")
    device = Device("cuda", torch.bfloat16)

    def peak(tokens: int, recompute: bool) -> int:
        found = step_memory_of(
            load_config("tiny-llama", *LARGE, f"train.micro_batch_tokens={tokens}"), "bfloat16", "cuda"
        )
        return found.recomputed_peak if recompute else found.peak

    config = load_config("tiny-llama", *LARGE)
    sizes = [65536 >> i for i in range(7)]
    whole = [peak(tokens, False) for tokens in sizes]
    assert whole == sorted(whole, reverse=True)
    for tokens, needed in zip(sizes[1:], whole[1:], strict=True):
        found = fits(config, device, round(needed / 0.9) + 1)
        assert int(found["micro_batch_tokens"]) == tokens
        assert ("recompute" in found) == (peak(65536, True) <= needed)
    assert fits(config, device, 100 * whole[0]) == {"recompute": "true", "micro_batch_tokens": "32768"}
    again = load_config("tiny-llama", *LARGE, "train.recompute=true")
    assert "recompute" not in fits(again, device, 100 * whole[0])
    both = fits(config, device, round(peak(1024, True) / 0.9) + 1)
    assert both == {"recompute": "true", "micro_batch_tokens": "1024"} or peak(1024, True) == peak(1024, False)
    assert "and 0.977 KiB are free; even one window of 1,024 tokens" in what_would_fit(config, device, 1000)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
@pytest.mark.slow
def test_out_of_memory_ends_one_run_and_tells_what_would_fit(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run of the same process trains, and the memory of the first run is free again."""
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    text = tiny.write_text(tmp_path)
    first, second = (
        replace(run, config=tiny.config(f"train.seed={i}", data=text), corpus=None) for i, run in enumerate(some(2))
    )
    models: list[weakref.ref[torch.nn.Module]] = []

    def too_much(model: torch.nn.Module, *_: object, **__: object) -> None:
        models.append(weakref.ref(model))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(training, "update", too_much)
        failed = train_run(first, tmp_path / "study", Callback()).failed
    size = r"\([\d.]+ KiB\)"
    assert re.fullmatch(
        r"out of memory on .+: a training step takes about [\d.]+ MiB, and [\d.]+ GiB are free now; other processes may "
        r"have used memory: in a study try fewer --workers; settings that would fit .in a study, for all arms.: "
        rf"train.recompute=true {size}, which does not change results, or train.micro_batch_tokens=32 {size}",
        str(failed),
    )
    assert models[0]() is None
    done = train_run(second, tmp_path / "study", Callback())
    assert done.summary
    assert done.summary.status == "finished"


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))

    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(training, "update", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(tiny.config(data=tiny.write_text(tmp_path)), tmp_path / "run", Callback())


SCRIPT = """
import os
print("imported with", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
from pathlib import Path
from archlab.study.executors.local import _start_worker

connection, worker = _start_worker(Path("."), "7")
connection.close()
worker.process.join()
"""


def test_a_worker_does_not_import_the_script_before_it_chooses_its_gpu(tmp_path: Path) -> None:
    """The script could use the GPUs of another worker."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, check=True)
    assert run.stdout.splitlines() == ["imported with None"]
