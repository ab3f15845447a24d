"""Claim: windows, chunks and packed documents pay: time per token of training does not grow with the length of the
text, and of decoding neither time nor memory does.

python benchmarks/length.py                    # a table, one JSON line, and records/length.json
python benchmarks/length.py --cpu-time         # where other work runs beside it; one thread, and no record

A training step has the same number of tokens at every length. All arms and lengths take turns, medians are compared.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load_memory import hardware

from archlab.config.training import resolve_train
from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder
from archlab.model.state import Cache
from archlab.train.device import choose_device
from archlab.train.optim import make_optimizer
from archlab.train.step import update

RECORD = Path(__file__).parent / "records" / "length.json"
TOKENS, DOCUMENT = 16_384, 512
"""Of a training step; of a packed document, in the mean."""
LENGTHS, CONTEXTS = (2048, 4096, 8192, 16_384), (1024, 4096, 16_384)
SHAPE = (
    "model.vocab_size=2048", "model.d_model=256", "model.n_layers=2", "model.mlp.d_ff=768",
    "model.attention.n_heads=4", "model.attention.n_kv_heads=4", f"model.max_seq_len={max(LENGTHS)}",
)  # fmt: skip
ARMS = {
    "full": (),
    "window 512": ("model.attention.window=512",),
    "chunks 512": ("model.attention.blocks={size: 512, summary: 0}",),
    "packed documents": ("train.document_mask=true",),
}
SEPARATOR = 0
DECODING_ROUNDS = 9
ALLOWED = 1.10
"""Growth of the time per token from the shortest length to the longest."""


def training(arm: str, length: int) -> Callable[[], None]:
    """One step of that arm at that length."""
    config = load_config("tiny-llama", *SHAPE, *ARMS[arm], f"train.seq_len={length}", f"train.batch_tokens={TOKENS}")
    train, device = resolve_train(config), choose_device(config.train)
    model = Decoder(config.model).train().to(device.type)
    optimizer = make_optimizer(model, train)
    draw = np.random.default_rng(0)
    windows = draw.integers(1, config.model.vocab_size, (TOKENS // length, length + 1))
    windows[draw.random(windows.shape) < 1 / DOCUMENT] = SEPARATOR
    separator = SEPARATOR if train.document_mask else None
    return lambda: void(update(model, optimizer, windows, train, 0, device, separator))


def decoding(arm: str, context: int) -> tuple[Callable[[], None], int]:
    """One token after a context of so many; the bytes of its cache."""
    model = Decoder(load_config("tiny-llama", *SHAPE, *ARMS[arm]).model).eval()
    cache = Cache(model.config, 1, context + 8 * (DECODING_ROUNDS + 1))
    with torch.no_grad():
        for _ in range(context // 512):
            model.hidden(torch.randint(1, 2048, (1, 512)), cache=cache)
    token = torch.ones(1, 1, dtype=torch.int64)

    @torch.no_grad()
    def step() -> None:
        for _ in range(8):
            model(token, cache=cache)

    return step, cache.n_bytes


def void(result: object) -> None:
    """Nothing of it."""


def medians(steps: dict[Any, Callable[[], None]], rounds: int, clock: Callable[[], float]) -> dict[Any, float]:
    """Seconds of each, of so many rounds in which all take turns; a round before them warms up."""
    found: dict[Any, list[float]] = {key: [] for key in steps}
    for _ in range(rounds + 1):
        for key, step in steps.items():
            start = clock()
            step()
            found[key].append(clock() - start)
    return {key: statistics.median(times[1:]) for key, times in found.items()}


def table(head: str, columns: tuple[int, ...], rows: dict[str, list[str]]) -> None:
    """At most 80 columns."""
    print(f"{head:<36}" + "".join(f"{column:>11,}" for column in columns))
    for name, cells in rows.items():
        print(f"{name:<36}" + "".join(f"{cell:>11}" for cell in cells))


def main() -> int:
    """All of it."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--cpu-time", action="store_true")
    asked.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    options = asked.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.cpu_time:
        torch.set_num_threads(1)
    arms = options.arms
    steps = {(arm, length): training(arm, length) for arm in arms for length in LENGTHS}
    train = {key: 1e6 * s / TOKENS for key, s in medians(steps, options.rounds, clock).items()}
    cut = [arm for arm in arms if arm != "packed documents"]
    made = {(arm, context): decoding(arm, context) for arm in cut for context in CONTEXTS}
    decode = {
        key: 1e6 * s / 8
        for key, s in medians({k: step for k, (step, _) in made.items()}, DECODING_ROUNDS, clock).items()
    }

    table("training, us per token; length", LENGTHS, {a: [f"{train[a, n]:.1f}" for n in LENGTHS] for a in arms})
    table("decoding, us per token; context", CONTEXTS, {a: [f"{decode[a, n]:.0f}" for n in CONTEXTS] for a in cut})
    table("cache, KiB; context", CONTEXTS, {a: [f"{made[a, n][1] / 1024:,.0f}" for n in CONTEXTS] for a in cut})
    growth = {a: round(train[a, LENGTHS[-1]] / train[a, LENGTHS[0]], 3) for a in arms}
    of_full = {a: [round(train[a, n] / train["full", n], 3) for n in LENGTHS] for a in arms if "full" in arms}
    pays = all(growth[a] < ALLOWED and max(of_full.get(a, [0])) < 1 for a in arms if a != "full")
    record = {
        "claim": f"with a window, chunks or packed documents time per token grows less than {ALLOWED} times from "
        f"{LENGTHS[0]} to {LENGTHS[-1]} tokens and is below full attention's at each length",
        "holds": pays,
        "clock": "cpu" if options.cpu_time else "wall",
        "threads": torch.get_num_threads(),
        "growth": growth,
        "of_full": of_full,
        "training_us_per_token": {a: [round(train[a, n], 2) for n in LENGTHS] for a in arms},
        "decoding_us_per_token": {a: [round(decode[a, n], 1) for n in CONTEXTS] for a in cut},
        "cache_bytes": {a: [made[a, n][1] for n in CONTEXTS] for a in cut},
        "hardware": hardware(),
    }
    if not options.cpu_time:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
    return 0 if pays else 1


if __name__ == "__main__":
    raise SystemExit(main())
