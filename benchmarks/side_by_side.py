"""Training speed of a small model: one process with all threads, or several processes with one thread each.

Usage:
    python benchmarks/side_by_side.py
    python benchmarks/side_by_side.py --check    # exit code 1 if the ratio is a tenth below the record.

The result is the reason why studies train several runs at the same time.
"""

import os
import sys
import time

import torch
from rounds import Round, finish, measure, options, side_by_side

from archlab.exchange.configs import load_config
from archlab.measuring.speed import rehearse

STEPS = 40


def speed(threads: int) -> float:
    """Return the tokens per second of one process, without its first steps."""
    torch.set_num_threads(threads)
    run = rehearse(load_config("tiny-llama", "train.seq_len=128", "train.batch_tokens=1024", "train.compile=false"))
    start = 0.0
    for step in range(STEPS):
        if step == STEPS // 4:
            start = time.perf_counter()
        run.step()
    return (STEPS - STEPS // 4) * run.train.batch_tokens / (time.perf_counter() - start)


def together(processes: int, threads: int) -> Round:
    """Return a round of `processes` fresh processes with `threads` threads each."""
    return lambda: sum(side_by_side(processes, speed, [threads] * processes))


def main() -> int:
    chosen = options(__doc__, rounds=3).parse_args()
    cores = os.cpu_count() or 1
    alone, apart = "one process", "side by side"
    results = measure({alone: (together, (1, cores)), apart: (together, (cores, 1))}, chosen.rounds)
    speeds = {name: result["median"] for name, result in results.items()}
    for name, median in speeds.items():
        print(f"{name:20}{median:9,.0f} tok/s")
    ratios = {f"{apart} to {alone}": speeds[apart] / speeds[alone]}
    return finish("side_by_side", ratios, {"rounds": chosen.rounds, "tokens_per_second": speeds}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
