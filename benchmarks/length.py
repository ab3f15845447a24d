"""Check that windows, chunks and packed documents pay off on long texts.

Usage:
    python benchmarks/length.py
    python benchmarks/length.py --arms full "window 512" --lengths 2048 4096 8192 16384
    python benchmarks/length.py --check    # exit code 1 if a ratio is a tenth below the record.

The claim: training time per token does not grow with the length of the text; neither do time and memory of decoding. A
training step has the same number of tokens at every length. Each combination of arm and length has its own process,
which needs 1.5 GB.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rounds import Round, finish, measure, options

from archlab.exchange.configs import load_config
from archlab.machine import keep_freed_memory
from archlab.measuring.speed import rehearse
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs
from archlab.model.state import Cache
from archlab.training.device import choose_device

TOKENS, DOCUMENT, SEPARATOR = 16_384, 512, 0
"""Tokens of a training step; mean length of a packed document; the token that begins a document."""
LENGTHS, CONTEXTS = [2048, 16_384], [1024, 16_384]
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
STEPS = 32
"""Tokens decoded per round."""


def training(arm: str, length: int) -> Round:
    """Return a round of one training step, in tokens per second."""
    size = (f"train.seq_len={length}", f"train.batch_tokens={TOKENS}", "train.compile=false")
    config = load_config("tiny-llama", *SHAPE, *ARMS[arm], *size)
    draw = np.random.default_rng(0)
    windows = draw.integers(1, config.model.vocab_size, (TOKENS // length, length + 1))
    windows[draw.random(windows.shape) < 1 / DOCUMENT] = SEPARATOR
    return warm(rehearse(config, windows).step, TOKENS)


def decoding(arm: str, context: int, rounds: int) -> Round:
    """Return a round of single decoding steps after `context` tokens, in tokens per second."""
    keep_freed_memory()
    config = load_config("tiny-llama", *SHAPE, *ARMS[arm])
    model = Decoder(config.model).eval().to(choose_device(config.train).type)
    cache = Cache(model.config, 1, context + STEPS * (rounds + 1), device=model.embedding.weight.device)
    token = torch.ones(1, 1, dtype=torch.int64, device=model.embedding.weight.device)

    @torch.no_grad()
    def steps() -> None:
        for _ in range(STEPS):
            model(token, cache=cache)[0, -1, 0].item()

    with torch.no_grad():
        for _ in range(context // 512):
            model.hidden(token.expand(1, 512), Inputs(cache=cache))
    return warm(steps, STEPS)


def warm(work: Callable[[], object], tokens: int) -> Round:
    """Return a round in tokens per second, after a warm-up."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return tokens / (time.perf_counter() - start)

    run()
    return run


def cache_bytes(arm: str, context: int) -> int:
    """Return the bytes of the cache for one sequence."""
    return Cache(load_config("tiny-llama", *SHAPE, *ARMS[arm]).model, 1, context).n_bytes


def table(head: str, columns: list[int], rows: dict[str, list[str]]) -> None:
    """Print a table of at most 80 columns."""
    print(f"{head:<36}" + "".join(f"{column:>11,}" for column in columns))
    for name, cells in rows.items():
        print(f"{name:<36}" + "".join(f"{cell:>11}" for cell in cells))


def main() -> int:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    chosen = parser.parse_args()
    arms, lengths = chosen.arms, sorted(chosen.lengths)
    cut = [arm for arm in arms if arm != "packed documents"]
    entrants = {f"{arm}, training at {n}": (training, (arm, n)) for arm in arms for n in lengths}
    entrants |= {f"{arm}, decoding after {n}": (decoding, (arm, n, chosen.rounds)) for arm in cut for n in CONTEXTS}
    results = measure(entrants, chosen.rounds)
    speed = {name: result["median"] for name, result in results.items()}

    def microseconds(kind: str, arm: str, columns: list[int]) -> list[str]:
        return [f"{1e6 / speed[f'{arm}, {kind} {n}']:.1f}" for n in columns]

    cache_sizes = {arm: [cache_bytes(arm, n) for n in CONTEXTS] for arm in cut}
    table("training, us per token; length", lengths, {a: microseconds("training at", a, lengths) for a in arms})
    table("decoding, us per token; context", CONTEXTS, {a: microseconds("decoding after", a, CONTEXTS) for a in cut})
    table("cache, KiB; context", CONTEXTS, {a: [f"{n / 1024:,.0f}" for n in found] for a, found in cache_sizes.items()})
    about = {"tokens_of_a_step": TOKENS, "cache_bytes": cache_sizes, "rounds": chosen.rounds, "results": results}
    return finish("length", ratios(speed, arms, lengths), about, check=chosen.check)


def ratios(speed: dict[str, float], arms: list[str], lengths: list[int]) -> dict[str, float]:
    """Return the speed on the longest text divided by that on the shortest, and the speed of each arm relative to
    full."""
    found = dict[str, float]()
    for arm in arms:
        for kind, columns in (("training at", lengths), ("decoding after", CONTEXTS)):
            of_arm = [speed[name] for n in columns if (name := f"{arm}, {kind} {n}") in speed]
            if of_arm:
                found[f"{arm}, {kind} {columns[-1]} to {columns[0]}"] = of_arm[-1] / of_arm[0]
        for n in lengths if arm != "full" and "full" in arms else ():
            found[f"{arm} to full, training at {n}"] = (
                speed[f"{arm}, training at {n}"] / speed[f"full, training at {n}"]
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
