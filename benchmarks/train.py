"""Training speed and peak memory of archlab, transformers, litgpt and x-transformers at the same shape.

Needs `pip install -e '.[bench]'`. Usage:
    python benchmarks/train.py            # 15.7M parameters, all libraries
    python benchmarks/train.py --shape 1.3m --rounds 9 --formats float32
    python benchmarks/train.py --check    # exit code 1 if a ratio is a tenth below the record.

A step is complete: forward, loss, backward, clipping, and AdamW (fused for all). archlab runs the same step as `archlab
train`. Its row `auto` uses the default settings.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from peers import PEERS, SHAPES, Shape, archlab_overrides, textbook_step
from rounds import Round, finish, measure, options

STEPS = 4
"""Steps per round."""


def windows(shape: Shape) -> np.ndarray:
    """Return random text."""
    return np.random.default_rng(0).integers(0, shape.vocab_size, (shape.batch, shape.seq_len + 1))


def peer(name: str, shape: Shape, mode: str, format_: str) -> Round:
    """Return a round of a plain training loop around a library's model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = PEERS[name](shape).train().to(device)
    run = torch.compile(model) if mode == "compiled" else model
    return timed(textbook_step(model, run, torch.from_numpy(windows(shape)).to(device), format_), shape)


def ours(shape: Shape, mode: str, format_: str) -> Round:
    """Return a round of archlab's own training step."""
    from archlab.exchange.configs import load_config
    from archlab.measuring.speed import rehearse

    how = (f"train.dtype={format_}", f"train.compile={str(mode == 'compiled').lower()}")
    return timed(rehearse(load_config("tiny-llama", *archlab_overrides(shape), *how), windows(shape)).step, shape)


def matmul(format_: str) -> Round:
    """Return a round of one large product, in FLOP/s: the upper limit."""
    from archlab.training.device import Device

    device = Device("cuda" if torch.cuda.is_available() else "cpu", getattr(torch, format_))
    return device.peak_flops


def timed(step: Callable[[], object], shape: Shape) -> Round:
    """Return a round of `STEPS` steps, in tokens per second, after two warm-up steps."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        return STEPS * shape.tokens / (time.perf_counter() - start)

    run()
    return run


def main() -> int:
    parser = options(__doc__, rounds=7)
    parser.add_argument("--shape", choices=SHAPES, default="15.7m")
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"])
    parser.add_argument("--formats", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--only", nargs="+", default=[*PEERS, "archlab"])
    chosen = parser.parse_args()
    shape = SHAPES[chosen.shape]
    entrants = {}
    for mode in chosen.modes:
        for format_ in chosen.formats:
            for name in chosen.only:
                entrants[f"{name} {mode} {format_}"] = (
                    (ours, (shape, mode, format_)) if name == "archlab" else (peer, (name, shape, mode, format_))
                )
        if "archlab" in chosen.only:
            entrants[f"archlab {mode} auto"] = ours, (shape, mode, "auto")
    peaks = {f"matmul {format_}": (matmul, (format_,)) for format_ in chosen.formats}
    results = measure({**entrants, **peaks}, chosen.rounds)
    flops = flops_per_token(shape)
    print(f"{'':34}{'tok/s':>9}{'of matmul':>11}{'memory':>10}")
    for name in (name for name in results if name in entrants):
        format_ = name.split()[-1]
        peak = results.get(f"matmul {format_}", {}).get("median")
        speed, peak_mib = results[name]["median"], results[name]["peak"] / 2**20
        used = f"{speed * flops / peak:.0%}" if peak else ""  # only archlab knows which dtype `auto` is
        print(f"{name:34}{speed:9,.0f}{used:>11}{peak_mib:7,.0f} MiB")
    return finish(
        "-".join(["train", chosen.shape, *chosen.modes]),
        ratios(results, chosen.modes, chosen.formats),
        {"flops_per_token": flops, "rounds": chosen.rounds, "memory": memory(results), "results": results},
        check=chosen.check,
    )


def ratios(results: dict[str, dict[str, float]], modes: list[str], formats: list[str]) -> dict[str, float]:
    """Return archlab's speed divided by the speed of the fastest library, in the same mode and dtype.

    For `auto`, the default settings, the fastest library may use any dtype.
    """
    found: dict[str, float] = {}
    for mode in modes:
        of_mode = {name: r for name, r in results.items() if name.split()[0] in PEERS and name.split()[1] == mode}
        for format_ in formats:
            peers = [r for name, r in of_mode.items() if name.endswith(format_)]
            if peers and (ours := results.get(f"archlab {mode} {format_}")):
                found[f"{mode} {format_}"] = round(ours["median"] / max(r["median"] for r in peers), 3)
        if of_mode and (ours := results.get(f"archlab {mode} auto")):
            found[f"{mode} auto"] = round(ours["median"] / max(r["median"] for r in of_mode.values()), 3)
    return found


def memory(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return archlab's peak memory divided by the smallest peak of a library in the same mode and dtype."""
    found: dict[str, float] = {}
    for name, result in results.items():
        same = [f"{peer} {name.partition(' ')[2]}" for peer in PEERS]
        peers = [results[other]["peak"] for other in same if other in results]
        if peers and name.startswith("archlab"):
            found[name] = round(result["peak"] / min(peers), 3)
    return found


def flops_per_token(shape: Shape) -> float:
    """Return archlab's count of FLOPs per token: products and visible pairs, forward and backward."""
    from archlab.exchange.configs import load_config
    from archlab.pricing.work import training_flops

    return training_flops(load_config("tiny-llama", *archlab_overrides(shape)).model, shape.seq_len)


if __name__ == "__main__":
    sys.exit(main())
