"""Core-seconds that a run of a study costs in addition to its training, for each executor.

Usage:
    python benchmarks/executors.py
    python benchmarks/executors.py --check    # exit code 1 if a ratio is a tenth below the record.

Each run has one step. As many runs as there are cores run at the same time, and the executor has nothing else to do.
Rounds with few and with many runs separate what is paid once (processes that start) from what every run pays.

`one process` trains the runs one after the other without an executor, so it only pays for the run folder, the text and
the evaluations. `slurm` is submitit's executor for the local machine: one process per run, without a cluster's queue.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rounds import Round, finish, measure, options

from archlab.data.open import open_training_data
from archlab.exchange.configs import load_config
from archlab.machine import cores
from archlab.study.executors.executor import OnProgress, RunProgress, train_run
from archlab.study.executors.named import make_executor
from archlab.study.runs import Run
from archlab.training.callback import Callback

FEW, MANY = 2, 22
"""Number of runs in a short and in a long round."""

OVERRIDES = (
    "model.d_model=32", "model.n_layers=2", "train.seq_len=16", "train.batch_tokens=64", "train.tokens=64",
    "train.eval_tokens=256", "train.dtype=float32", "train.device=cpu", "train.compile=false",
)  # fmt: skip
ALONE = "one process"
EXECUTORS = {"local": (), "ray": (), "slurm": ("cluster=local",)}


class OneProcess:
    """An executor without other processes."""

    def run_all(self, runs: Sequence[Run], study: Path, on_progress: OnProgress) -> list[RunProgress]:
        return [ended for run in runs if (ended := train_run(run, study, Callback())).failed]


def handed_out(name: str, n: int) -> Round:
    """Return a round of `n` runs, in runs per second."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  as the other executors' processes; Ray's own is 15
    executor = OneProcess() if name == ALONE else make_executor(name, cores(), EXECUTORS[name])
    configs = [load_config("tiny-llama", *OVERRIDES, f"train.seed={seed}") for seed in range(n)]
    text = open_training_data(configs[0].data, configs[0].model.vocab_size).fingerprint
    runs = [Run(f"run {seed}", config, text, threads=1) for seed, config in enumerate(configs)]

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            failed = executor.run_all(runs, Path(folder), lambda _: None)
            took = time.perf_counter() - start
        if failed:
            raise SystemExit(failed[0].failed)
        return n / took

    run()  # prepare the text and start the cluster
    return run


def main() -> int:
    chosen = options(__doc__, rounds=5).parse_args()
    names = (ALONE, *EXECUTORS)
    entrants = {f"{name}, {n} runs": (handed_out, (name, n)) for name in names for n in (FEW, MANY)}
    found = measure(entrants, chosen.rounds)
    seconds = {
        name: {"each run": _each(name, few, many), "once": few - FEW * (many - few) / (MANY - FEW)}
        for name in names
        for few, many in [[n / found[f"{name}, {n} runs"]["median"] for n in (FEW, MANY)]]
    }
    print(f"{'':14}{'each run':>10}{'beside it':>11}{'once':>8}   seconds of a core")
    alone = seconds[ALONE]["each run"]
    for name, of in seconds.items():
        print(f"{name:14}{of['each run']:10.3f}{of['each run'] - alone:11.3f}{of['once']:8.2f}")
    ratios = {f"{ALONE} to {name}": alone / seconds[name]["each run"] for name in EXECUTORS}
    rounded = {name: {what: round(value, 4) for what, value in of.items()} for name, of in seconds.items()}
    return finish(
        "executors", ratios, {"seconds": rounded, "at_once": cores(), "rounds": chosen.rounds}, check=chosen.check
    )


def _each(name: str, few: float, many: float) -> float:
    """Return the core-seconds per run. An executor keeps all cores busy."""
    return (many - few) / (MANY - FEW) * (1 if name == ALONE else cores())


if __name__ == "__main__":
    sys.exit(main())
