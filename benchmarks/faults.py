"""Kill a training many times at random moments, and compare its result with a training that was never killed.

Usage:
    python benchmarks/faults.py               # 50 kills of one process, and 50 of two that train together
    python benchmarks/faults.py --kills 10    # a quicker try.

A kill is SIGKILL, sent to all processes at once. Every third step writes a checkpoint. Many kills therefore happen
while a checkpoint is written, many happen between two checkpoints, and others happen before the run has resumed.

If a weight, a loss or a score differs by a single bit, the exit code is 1 and no record is written.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rounds import finish, help_of
from safetensors.torch import load_file

from archlab.files import TEMPORARY

STEPS = 240
RUN = (
    "-m", "archlab", "train", "tiny-llama", f"train.tokens={STEPS * 256}", "train.batch_tokens=256", "train.seq_len=64",
    "train.micro_batch_tokens=128", "train.checkpoint_every=3", "train.eval_every=100", "train.eval_tokens=2048",
    "train.dtype=float32", "model.dropout=0.1",
)  # fmt: skip
TOGETHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
STARTS: dict[str, tuple[str, ...]] = {"one process": RUN, "two processes": (*TOGETHER, *RUN)}


def main() -> int:
    parser = help_of(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    kills, seed = parser.parse_args().kills, time.time_ns()
    print(f"moments drawn with seed {seed}")
    draw, found = random.Random(seed), dict[str, dict[str, int]]()
    with tempfile.TemporaryDirectory() as home:
        for name, command in STARTS.items():
            whole, killed = Path(home) / f"{name} whole", Path(home) / f"{name} killed"
            to_the_end(command, whole)
            found[name] = dict(Counter(kill(command, killed, draw) for _ in range(kills)))
            print(f"{name}: {found[name]}")
            to_the_end(command, killed)
            if end(killed) != end(whole) or not same_weights(killed, whole):
                print(f"{name}: the killed run and the undisturbed run end differently")
                return 1
    ratios = {f"same end, {name}": 1.0 for name in STARTS}
    return finish("faults", ratios, {"kills": found, "steps": STEPS}, check=False)


def to_the_end(command: tuple[str, ...], run: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command, "--out", run], env=environment, check=True, capture_output=True)


def kill(command: tuple[str, ...], run: Path, draw: random.Random) -> str:
    """Start the run, kill it at a random moment, and return what it was doing."""
    before, environment = len(lines(run)), {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command, "--out", run], env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    if draw.random() < 0.1:
        time.sleep(draw.uniform(0.5, 5))
    else:
        enough = before + draw.randint(1, 3)
        while process.poll() is None and len(lines(run)) < enough:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.05))
    ended = process.poll() is not None
    for each in [process.pid, *descendants(process.pid)]:
        os.kill(each, signal.SIGKILL)
    errors = process.communicate()[1]
    if ended:
        raise SystemExit(f"the training ended before it was killed: {errors.decode()}")
    if len(lines(run)) <= before:
        return "before it went on"
    return "while it saved" if any((run / "checkpoints").glob(f"{TEMPORARY}*")) else "between two saves"


def descendants(pid: int) -> list[int]:
    """Return all descendants, because the workers of torchrun have sessions of their own."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def lines(run: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the run's log."""
    file = run / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def end(run: Path) -> list[dict[str, Any]]:
    """Return the parts of the log that must not depend on kills."""
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines(run)]


def same_weights(one: Path, other: Path) -> bool:
    """Return whether the only checkpoints of two runs have the same bits."""
    (ours,), (theirs,) = ([*(run / "checkpoints").iterdir()] for run in (one, other))
    names = {file.name for file in ours.glob("*.safetensors")}
    if not names or names != {file.name for file in theirs.glob("*.safetensors")}:
        return False
    for name in names:
        mine, yours = load_file(ours / name), load_file(theirs / name)
        if mine.keys() != yours.keys() or not all(torch.equal(mine[key], yours[key]) for key in mine):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
