"""Check a claim: projections with the same input gain from converting it once, but not from being one product.

Usage:
    python benchmarks/products.py            # the shapes of train.py, float32 and bfloat16 autocast
    python benchmarks/products.py --shapes 15.7m --rounds 15
    python benchmarks/products.py --check    # exit code 1 if a ratio is a tenth below the record.

Each pass is forward and backward. There are three groups of projections: queries, keys and values; the two input
projections of a gated MLP; and all five. A block with parallel branches could compute all five from one norm.

There are three ways. `apart` uses torch's own products. `converted once` is what archlab does. `one` is a single
product with the concatenated matrices. It concatenates them in every pass, because the parameters stay separate.
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from peers import SHAPES, Shape
from rounds import Round, finish, measure, options
from torch import Tensor

WAYS = ("apart", "converted once", "one")
SECONDS = 0.3
"""Approximate duration of a round."""


def groups(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the output widths of the projections that have the same input."""
    width = shape.d_model // shape.n_heads
    qkv = (shape.d_model, shape.n_kv_heads * width, shape.n_kv_heads * width)
    return {"qkv": qkv, "gate and up": (shape.d_ff,) * 2, "all five": (*qkv, shape.d_ff, shape.d_ff)}


def products(shape: Shape, group: str, way: str, format_: str) -> Round:
    """Return a round of forward and backward passes, in passes per second."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(shape.batch, shape.seq_len, shape.d_model, device=device, requires_grad=True)
    widths = groups(shape)[group]
    weights = [torch.randn(width, shape.d_model, device=device, requires_grad=True) for width in widths]
    gradients = [torch.randn(*x.shape[:-1], width, device=device) for width in widths]

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=format_ == "bfloat16"):
            outputs = compute(way, x, weights)
        torch.autograd.backward(outputs, [g.to(y.dtype) for g, y in zip(gradients, outputs, strict=True)])
        for leaf in (x, *weights):
            leaf.grad = None

    return timed(step)


def compute(way: str, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Compute the projections of `x`, with or without autocast."""
    from archlab.model.arithmetic import as_autocast

    if way == "apart":
        return [F.linear(x, weight) for weight in weights]
    x, *converted = as_autocast(x, *weights)
    if way == "converted once":
        return [F.linear(x, weight) for weight in converted]
    return list(F.linear(x, torch.cat(converted)).split([len(weight) for weight in weights], -1))


def timed(step: Callable[[], None]) -> Round:
    """Return a round that repeats the step for about `SECONDS`, in steps per second."""

    def run(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return n / (time.perf_counter() - start)

    run(3)
    n = max(1, round(SECONDS * run(3)))
    return lambda: run(n)


def main() -> int:
    parser = options(__doc__, rounds=9)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1.3m", "15.7m"])
    parser.add_argument("--formats", nargs="+", default=["bfloat16", "float32"])
    chosen = parser.parse_args()
    cases = [
        (name, group, format_) for name in chosen.shapes for group in groups(SHAPES[name]) for format_ in chosen.formats
    ]
    found, ratios = {}, {}
    print(f"{'':34}{'of apart':>10}{'':>16}")
    for case in cases:
        name, group, format_ = case
        of_case = measure({way: (products, (SHAPES[name], group, way, format_)) for way in WAYS}, chosen.rounds)
        found[" ".join(case)] = of_case
        for way in WAYS[1:]:
            ratio = round(of_case[way]["median"] / of_case["apart"]["median"], 3)
            ratios[" ".join((*case, way))] = ratio
            print(f"{' '.join(case):34}{ratio:>10.2f}  {way}")
    return finish("products", ratios, {"rounds": chosen.rounds, "results": found}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
