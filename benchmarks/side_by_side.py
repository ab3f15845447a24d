"""Training tokens/s of one process with all threads against one-thread processes side by side, for a small model: why
studies run as they do.

python benchmarks/side_by_side.py
python benchmarks/side_by_side.py --check       # exit code 1 where the ratio is a tenth below the record's
"""

import os
import sys
import time

import torch
from rounds import Round, finish, measure, options, side_by_side

from archlab.exchange.configs import load_config
from archlab.infer.speed import rehearse

STEPS = 40


def speed(threads: int) -> float:
    """Tokens per second of one process, its first steps left out."""
    torch.set_num_threads(threads)
    run = rehearse(load_config("tiny-llama", "train.seq_len=128", "train.batch_tokens=1024", "train.compile=false"))
    start = 0.0
    for step in range(STEPS):
        if step == STEPS // 4:
            start = time.perf_counter()
        run.step()
    return (STEPS - STEPS // 4) * run.train.batch_tokens / (time.perf_counter() - start)


def together(processes: int, threads: int) -> Round:
    """Of so many processes with so many threads each, in fresh ones every time."""
    return lambda: sum(side_by_side(processes, speed, [threads] * processes))


def main() -> int:
    """The table and the record."""
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
