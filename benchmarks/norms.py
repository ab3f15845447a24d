"""Time of RMSNorm compared with torch's fused LayerNorm, forward and backward, as archlab's configs build them.

Usage:
    OMP_NUM_THREADS=2 python benchmarks/norms.py
    python benchmarks/norms.py --check    # exit code 1 if a ratio is a tenth below the record.

A ratio is the time of LayerNorm divided by the time of another norm, so 1 means equally fast. Both are eager, or both
are compiled. All norms take turns in one process. A ratio is that of the fastest passes, and the spread is that of the
rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from rounds import finish, options

from archlab.config.components.norm import LayerNorm, RMSNorm
from archlab.model.graphs import allow_forms
from archlab.model.norms import make_norm

NORMS = {
    "LayerNorm": LayerNorm(),
    "LayerNorm without bias": LayerNorm(bias=False),
    "RMSNorm": RMSNorm(),
    "RMSNorm, 1 + weight": RMSNorm(unit_offset=True),
    "RMSNorm without weight": RMSNorm(weight=False),
}
SHAPES = ((8, 128, 64), (8, 128, 256), (8, 256, 384), (4, 512, 1024))
"""Batch, tokens and features. The first shape is that of the study `norm-kind`."""

PASSES = 3
"""Passes per round, of which the fastest counts."""


Pass = Callable[[], object]


def passing(norm: torch.nn.Module, shape: tuple[int, ...], dtype: torch.dtype, *, compiled: bool) -> Pass:
    """Return a forward and backward pass through a norm."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    norm = norm.to(device, dtype)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    x, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    inputs = [x.requires_grad_(), *norm.parameters()]
    run = torch.compile(norm, dynamic=False) if compiled else norm
    return lambda: torch.autograd.grad(run(x), inputs, grad)


def seconds(run: Pass) -> float:
    """Return the seconds of the fastest of a few passes."""
    times = list[float]()
    for _ in range(PASSES):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    parser = options(__doc__, rounds=100)
    parser.add_argument("--formats", nargs="+", default=["float32", "bfloat16"])
    chosen = parser.parse_args()
    allow_forms()
    ratios, results = dict[str, float](), dict[str, dict[str, float]]()
    print(f"{'':58}{'fastest':>9}{'LayerNorm / norm':>18}{'half of the rounds':>20}")
    for shape in SHAPES:
        for format_ in chosen.formats:
            for mode in ("eager", "compiled"):
                passes = {
                    name: passing(
                        make_norm(config, shape[-1]), shape, getattr(torch, format_), compiled=mode == "compiled"
                    )
                    for name, config in NORMS.items()
                }
                for run in passes.values():  # compile
                    seconds(run)
                rounds = [{name: seconds(run) for name, run in passes.items()} for _ in range(chosen.rounds)]
                for name in NORMS:
                    case = f"{name} {list(shape)} {format_} {mode}"
                    fastest = min(times[name] for times in rounds)
                    ratio = min(times["LayerNorm"] for times in rounds) / fastest
                    low, _, high = statistics.quantiles((times["LayerNorm"] / times[name] for times in rounds), n=4)
                    print(f"{case:58}{fastest * 1e6:6,.0f} us{ratio:18.2f}{low:13.2f} to {high:.2f}", flush=True)
                    results[case] = {"seconds": fastest, "low": round(low, 3), "high": round(high, 3)}
                    ratios |= {case: ratio} if name != "LayerNorm" else {}
    return finish("norms", ratios, {"rounds": chosen.rounds, "results": results}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
