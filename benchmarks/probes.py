"""Cost of probes: probing the 15.7M model at every twentieth step costs less than 3% of the training time.

Usage:
    python benchmarks/probes.py            # eager and compiled
    python benchmarks/probes.py --modes eager --every 10 20 50
    python benchmarks/probes.py --check    # exit code 1 if a ratio is a tenth below the record.

A step and a probe are timed separately, in turns. Whole trainings would not show the cost, because it is smaller than
their noise. The time of a probe includes everything: the copy of the weights, the pass over 512 held-out tokens, its
gradient, and the line in the log. A ratio is the speed of training with probes divided by the speed without.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peers import SHAPES, archlab_overrides
from rounds import Round, finish, measure, options

from archlab.data.batch import HeldOut, next_token
from archlab.data.training_data import Windows
from archlab.exchange.configs import load_config
from archlab.measuring.speed import Rehearsal, rehearse
from archlab.training.probes import Probing
from archlab.training.run_folder import RunFolder

SHAPE = SHAPES["15.7m"]
MODES = ["eager", "compiled"]
WORTHWHILE = 0.97
"""The claimed speed, relative to training without probes."""


def rehearsed(mode: str) -> Rehearsal:
    """Return a training step as a run would make it, in the dtype that a run would choose."""
    how = (f"train.compile={str(mode == 'compiled').lower()}",)
    return rehearse(load_config("tiny-llama", *archlab_overrides(SHAPE), *how))


def steps(mode: str) -> Round:
    """Return a round of training steps, in steps per second."""
    return timed(rehearsed(mode).step)


def probes(mode: str) -> Round:
    """Return a round of probes, in probes per second. The first step, which compiles, does not count."""
    run = rehearsed(mode)
    run.step()
    windows = Windows(np.random.default_rng(1).integers(0, SHAPE.vocab_size, (SHAPE.batch, SHAPE.seq_len + 1)))
    probing = Probing(run.model, HeldOut(next_token(windows), windows), 1, run.device)
    folder = RunFolder(Path(tempfile.mkdtemp()))

    def once() -> None:
        probing.before_update(1)
        probing.after_update(1, folder)

    return timed(once)


def timed(work: Callable[[], object]) -> Round:
    """Return a round of `work`, in calls per second, after a warm-up."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return 1 / (time.perf_counter() - start)

    run()
    return run


def main() -> int:
    parser = options(__doc__, rounds=9)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--every", nargs="+", type=int, default=[10, 20, 50])
    chosen = parser.parse_args()
    makers = {"step": steps, "probe": probes}
    entrants = {f"{what}, {mode}": (make, (mode,)) for mode in chosen.modes for what, make in makers.items()}
    results = measure(entrants, chosen.rounds)
    ratios = dict[str, float]()
    for mode in chosen.modes:
        of_a_step = results[f"step, {mode}"]["median"] / results[f"probe, {mode}"]["median"]
        print(f"{mode}: a step {1 / results[f'step, {mode}']['median']:.2f} s, a probe {of_a_step:.1%} of it")
        for every in chosen.every:
            ratio = 1 / (1 + of_a_step / every)
            ratios[f"{mode}, every {every}"] = ratio
            print(
                f"  every {every:>3} steps: {1 - ratio:.2%} of the time{'' if ratio > WORTHWHILE else '  (too much)'}"
            )
    return finish("probes", ratios, {"rounds": chosen.rounds, "results": results}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
