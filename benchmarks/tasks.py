"""Check a claim: the windows of a task are made far faster than a model trains on them, at least 1M tokens per second.

Usage:
    python benchmarks/tasks.py
    python benchmarks/tasks.py --check    # exit code 1 if a ratio is a tenth below the record.

Ratios are relative to uniform random tokens of the same shape, which are also drawn one batch at a time.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from rounds import Round, finish, measure, options

from archlab.config.tasks import Task
from archlab.config.tasks.compression import Compression
from archlab.config.tasks.copying import SelectiveCopy
from archlab.config.tasks.memorise import Memorise
from archlab.config.tasks.recall import FuzzyRecall, NoisyRecall, Recall
from archlab.config.tasks.states import StateTracking
from archlab.data.tasks.windows import windows

SEQ_LEN, VOCAB_SIZE, BATCH = 256, 512, 32
SECONDS = 0.3
"""Approximate duration of a round."""
UNIFORM = "uniform tokens"
TASKS: tuple[Task, ...] = (
    Recall(pairs=32, distance=64),
    FuzzyRecall(pairs=16),
    NoisyRecall(pairs=32, noise=64),
    SelectiveCopy(copied=64),
    Compression(compressed=64),
    Memorise(facts=100_000, key_tokens=3),
    StateTracking(group="s5"),
)


def made(task: Task) -> Round:
    """Return a round that makes a task's windows."""
    return timed(lambda i: windows(task, 0, i * BATCH, BATCH, SEQ_LEN, VOCAB_SIZE))


def uniform() -> Round:
    """Return a round that draws uniform random tokens."""
    return timed(lambda i: np.random.default_rng([0, i]).integers(VOCAB_SIZE, size=(BATCH, SEQ_LEN + 1)))


def timed(batch: Callable[[int], object]) -> Round:
    """Return a round that repeats `batch` for about `SECONDS`, in tokens per second."""

    def run() -> float:
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < SECONDS:
            batch(n)
            n += 1
        return n * BATCH * SEQ_LEN / (time.perf_counter() - start)

    run()
    return run


def main() -> int:
    chosen = options(__doc__, rounds=5).parse_args()
    entrants = {task.kind: (made, (task,)) for task in TASKS}
    results = measure({UNIFORM: (uniform, ()), **entrants}, chosen.rounds)
    speeds = {name: result["median"] for name, result in results.items()}
    for name, median in speeds.items():
        print(f"{name:16}{median / 1e6:7.1f} M tok/s")
    ratios = {name: speeds[name] / speeds[UNIFORM] for name in entrants}
    return finish("tasks", ratios, {"rounds": chosen.rounds, "tokens_per_second": speeds}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
