"""How long archlab takes to begin: from the start of the process to the first step done, and to open prepared data.

python benchmarks/startup.py        # a table, and one JSON line last

Medians over fresh processes, in seconds of a clock and of the processor; what a run prepares once has been prepared.
The folder of 200M tokens is made up on the spot; it needs 400 MB of temporary space.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from archlab.data import tokenizer as bpe
from archlab.data.file_cache import SETTLED
from archlab.data.prepare import ShardWriter
from archlab.data.shards import FORMAT, MANIFEST, TOKENIZER, DataFolder, Manifest
from archlab.digests import sha256

REPEATS = 5
TOKENS = 200_000_000
TRAIN = ("-m", "archlab", "train", "tiny-llama")
STARTS = {
    "import torch": ("-c", "import torch"),
    "archlab --help": ("-m", "archlab", "--help"),
    "archlab cost tiny-llama": ("-m", "archlab", "cost", "tiny-llama"),
    "import archlab.train.loop": ("-c", "import archlab.train.loop"),
    "first step, one window held out": (*TRAIN, "train.eval_tokens=256"),
    "first step": TRAIN,
}
"""What a process is started with; the last two are stopped after their first step."""


def seconds(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Of a clock and of the processor, until the process ends or its run has done a step."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        out = ("--out", str(metrics.parent)) if "train" in arguments else ()
        before, start = os.times(), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments, *out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while process.poll() is None and not (metrics.exists() and '"lr"' in metrics.read_text()):
            time.sleep(0.002)
        took = time.perf_counter() - start
        failed = process.poll()
        process.kill()
        said, after = process.communicate()[1], os.times()
        if failed:
            raise SystemExit(said.decode())
    return took, after.children_user + after.children_system - before.children_user - before.children_system


def made_up(folder: Path) -> None:
    """A data folder of random tokens."""
    folder.mkdir()
    tokenizer = bpe.train(["some text"], bpe.SMALLEST_VOCAB)
    vocab_size, end = bpe.vocab_size(tokenizer), bpe.end_of_text(tokenizer)
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    draw = np.random.default_rng(0)
    splits = {}
    for split, tokens in (("train", TOKENS), ("held_out", TOKENS // 100)):
        writer = ShardWriter(folder, split, "uint16")
        for at in range(0, tokens, 1_000_000):
            writer.append(draw.integers(1, vocab_size, min(tokens - at, 1_000_000)), text_bytes=1_000_000, documents=1)
        splits[split] = writer.finish()
    manifest = Manifest(
        format=FORMAT, source="made up", skipped=0, key="", vocab_size=vocab_size, dtype="uint16", end_of_text=end,
        tokenizer_sha256=sha256(folder / TOKENIZER), **splits,
    )  # fmt: skip
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Of a clock and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - used


def openings() -> dict[str, tuple[float, float]]:
    """Of the made-up folder: for the first time, again, and after a shard was touched."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ARCHLAB_CACHE"] = f"{home}/cache"
        folder = Path(home) / "data"
        made_up(folder)
        time.sleep(SETTLED / 1e9 + 0.1)  # what has just been written is not remembered yet
        found = {"first opening, every byte hashed": timed(lambda: DataFolder.open(folder))}
        again = [timed(lambda: DataFolder.open(folder)) for _ in range(REPEATS)]
        found["opened again"] = middle(again)
        (folder / "train-00001.bin").touch()
        time.sleep(SETTLED / 1e9 + 0.1)
        found["opened after one of three shards was touched"] = timed(lambda: DataFolder.open(folder))
    return found


def middle(found: list[tuple[float, float]]) -> tuple[float, float]:
    """The median of each column."""
    clock, used = zip(*found, strict=True)
    return statistics.median(clock), statistics.median(used)


def main() -> None:
    """All of it, in turn."""
    seconds(TRAIN)  # prepares the text
    each: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(REPEATS):
        for name, arguments in STARTS.items():
            each[name].append(seconds(arguments))
    rows = {name: middle(found) for name, found in each.items()} | openings()
    for name, (clock, used) in rows.items():
        print(f"{name:46s} {clock:7.3f} s   {used:7.3f} s of the processor")
    machine = {
        "processor": str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print(json.dumps({name: [round(x, 4) for x in found] for name, found in rows.items()} | machine))


if __name__ == "__main__":
    main()
