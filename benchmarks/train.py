"""Training tokens/s and peak memory of archlab against transformers, litgpt and x-transformers, at the same shape.

pip install -e '.[bench]'
python benchmarks/train.py                     # 15.7M parameters, every library, eager and compiled, both formats
python benchmarks/train.py --shape 1.3m --rounds 9 --formats float32
python benchmarks/train.py --check             # exit code 1 where a ratio is a tenth below the record's

A step is the whole of it: forward, loss, backward, clipping, AdamW (fused, for all). archlab runs what `archlab train`
runs; its row `auto` is what a user gets who sets nothing.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from peers import PEERS, SHAPES, Shape, archlab_overrides, textbook_step
from rounds import Round, finish, measure, options

STEPS = 4
"""Per round."""


def windows(shape: Shape) -> np.ndarray:
    """Random text."""
    return np.random.default_rng(0).integers(0, shape.vocab_size, (shape.batch, shape.seq_len + 1))


def peer(name: str, shape: Shape, mode: str, format_: str) -> Round:
    """The training loop of the textbook around a library's model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = PEERS[name](shape).train().to(device)
    run = torch.compile(model) if mode == "compiled" else model
    return timed(textbook_step(model, run, torch.from_numpy(windows(shape)).to(device), format_), shape)


def ours(shape: Shape, mode: str, format_: str) -> Round:
    """archlab's own step."""
    from archlab.exchange.configs import load_config
    from archlab.infer.speed import rehearse

    how = (f"train.dtype={format_}", f"train.compile={str(mode == 'compiled').lower()}")
    return timed(rehearse(load_config("tiny-llama", *archlab_overrides(shape), *how), windows(shape)).step, shape)


def matmul(format_: str) -> Round:
    """FLOP/s of one large product: the limit."""
    from archlab.training.device import Device

    device = Device("cuda" if torch.cuda.is_available() else "cpu", getattr(torch, format_))
    return device.peak_flops


def timed(step: Callable[[], object], shape: Shape) -> Round:
    """Tokens per second of a round, after two steps that do not count."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        return STEPS * shape.tokens / (time.perf_counter() - start)

    run()
    return run


def main() -> int:
    """The table and the record."""
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
        used = f"{speed * flops / peak:.0%}" if peak else ""  # which format `auto` is, only archlab knows
        print(f"{name:34}{speed:9,.0f}{used:>11}{peak_mib:7,.0f} MiB")
    return finish(
        "-".join(["train", chosen.shape, *chosen.modes]),
        ratios(results, chosen.modes, chosen.formats),
        {"flops_per_token": flops, "rounds": chosen.rounds, "memory": memory(results), "results": results},
        check=chosen.check,
    )


def ratios(results: dict[str, dict[str, float]], modes: list[str], formats: list[str]) -> dict[str, float]:
    """Of archlab's speed to the fastest library's, in the same mode and format; and of what a user gets who sets
    nothing to the fastest library in any format."""
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
    """Of archlab's peaks to the smallest of a library in the same mode and format."""
    found: dict[str, float] = {}
    for name, result in results.items():
        same = [f"{peer} {name.partition(' ')[2]}" for peer in PEERS]
        peers = [results[other]["peak"] for other in same if other in results]
        if peers and name.startswith("archlab"):
            found[name] = round(result["peak"] / min(peers), 3)
    return found


def flops_per_token(shape: Shape) -> float:
    """As archlab counts them: products and visible pairs, forward and backward."""
    from archlab.exchange.configs import load_config
    from archlab.pricing.work import training_flops

    return training_flops(load_config("tiny-llama", *archlab_overrides(shape)).model, shape.seq_len)


if __name__ == "__main__":
    sys.exit(main())
