"""Compare the estimates of `archlab cost` with measurements: tokens/s of training and decoding, and peak memory.

Usage:
    python benchmarks/estimates.py            # measures the machine first, as `archlab hardware --measure` does
    python benchmarks/estimates.py --check    # exit code 1 if a ratio is a tenth below the record.

There are ten models, which differ in shape, in kind and in length of text. None of them is among the models with which
the machine is measured. They take turns. The fastest round of each counts, because other work on a machine can only
slow it down.

Memory is the memory of tensors. A process needs more, because the C library does not reuse all freed blocks; the record
has this number, too. A ratio is the smaller of estimate and measurement divided by the larger: 1 is exact, 0.87 is off
by 15%.
"""

import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from rounds import Round, finish, measure, options

from archlab.config.schema import Config
from archlab.exchange.configs import load_config
from archlab.measuring.measure import calibrate
from archlab.measuring.speed import WARM_UP, rehearse, rehearse_decoding
from archlab.pricing.hardware import Rates
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import predicted
from archlab.pricing.summary import cost
from archlab.pricing.work import PassName
from archlab.training.device import Device, choose_device

CONTEXT, STEPS = 512, 24
"""Number of tokens in the cache; number of tokens decoded per round."""

MODELS: dict[str, tuple[str, ...]] = {
    "GPT-2's block": (
        "model.norm.kind=layernorm", "model.mlp.kind=plain", "model.mlp.activation=gelu_tanh", "model.mlp.bias=true",
        "model.attention={n_heads: 6, qkv_bias: true, out_bias: true}", "model.position.kind=learned",
        "model.vocab_size=16384", "model.d_model=384", "model.n_layers=6", "train.seq_len=512",
        "train.batch_tokens=4096",
    ),
    "Llama's block": (
        "model.vocab_size=8192", "model.d_model=384", "model.n_layers=6", "model.mlp.d_ff=1024",
        "model.attention={n_heads: 6, n_kv_heads: 2}", "model.head.tied=false", "train.seq_len=256",
        "train.batch_tokens=2048",
    ),
    "Gemma 2's block": (
        "model.norm.placement=double", "model.mlp.activation=gelu_tanh", "model.vocab_size=32768", "model.d_model=256",
        "model.n_layers=4", "model.attention={n_heads: 8, n_kv_heads: 4, head_dim: 64, softcap: 50, window: 256}",
        "model.head.softcap=30", "train.seq_len=512", "train.batch_tokens=2048",
    ),
    "mixture": (
        "model.d_model=256", "model.n_layers=4", "model.mlp={kind: moe, experts: 16, active: 4, d_ff: 256}",
        "train.seq_len=256", "train.batch_tokens=4096",
    ),
    "latent attention": (
        "model.d_model=320", "model.n_layers=5",
        "model.attention={kind: latent, n_heads: 5, kv_rank: 128, rope_dim: 32, nope_dim: 64, v_dim: 64}",
        "train.seq_len=256", "train.batch_tokens=2048",
    ),
    "deep and narrow": ("model.d_model=96", "model.n_layers=32", "train.seq_len=128", "train.batch_tokens=2048"),
    "shallow and wide": ("model.d_model=1024", "model.n_layers=2", "train.seq_len=128", "train.batch_tokens=1024"),
    "long": ("model.d_model=192", "model.n_layers=3", "train.seq_len=4096", "train.batch_tokens=8192"),
    "long with a window": (
        "model.d_model=192", "model.n_layers=3", "model.attention.window=512", "train.seq_len=4096",
        "train.batch_tokens=8192",
    ),
    "parallel, one key head": (
        "model.block.parallel=shared", "model.d_model=320", "model.n_layers=8",
        "model.attention={n_heads: 10, n_kv_heads: 1}", "model.norm.kind=layernorm", "model.vocab_size=4096",
        "train.seq_len=384", "train.batch_tokens=3072",
    ),
}  # fmt: skip
"""Overrides of tiny-llama."""


def config_of(changes: tuple[str, ...]) -> Config:
    """Return the config of a model that is not compiled."""
    return load_config("tiny-llama", "model.max_seq_len=4096", "train.compile=false", *changes)


def training(changes: tuple[str, ...]) -> Round:
    """Return a round of three updates, in tokens per second."""
    run = rehearse(config_of(changes))
    for _ in range(2):
        run.step()
    return lambda: 3 * run.train.batch_tokens / seconds(run.step, 3)


def memory(changes: tuple[str, ...]) -> Round:
    """Return a round that gives the peak memory of all tensors in bytes, from torch's own record of its allocations."""
    from torch.profiler import ProfilerActivity, profile

    run = rehearse(config_of(changes))
    run.step()
    state_bytes = 3 * sum(p.numel() * p.element_size() for p in run.model.parameters())  # AdamW's averages are as large

    def peak() -> float:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            run.step()
        found = seen.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
        own: Any = [event for event in found if event.name() == "[memory]"]
        changes = sorted((event.start_ns(), event.nbytes()) for event in own)
        return state_bytes + max(accumulate(n_bytes for _, n_bytes in changes))

    return peak


def decoding(changes: tuple[str, ...]) -> Round:
    """Return a round that decodes one sequence in bfloat16."""
    import torch

    device = Device(choose_device(config_of(changes).train).type, torch.bfloat16)

    def run() -> float:
        _, step = rehearse_decoding(config_of(changes), device, 1, CONTEXT, STEPS)
        for _ in range(WARM_UP):
            step()
        return STEPS / seconds(step, STEPS)

    return run


def seconds(step: Callable[[], None], n: int) -> float:
    """Return the seconds that `n` consecutive steps take."""
    start = time.perf_counter()
    for _ in range(n):
        step()
    return time.perf_counter() - start


def exactness(estimate: float, measurement: float) -> float:
    """Return the smaller number divided by the larger."""
    return min(estimate, measurement) / max(estimate, measurement)


def main() -> int:
    chosen = options(__doc__, rounds=5).parse_args()
    trained_in = choose_device(config_of(()).train)
    formats: dict[PassName, Format] = {"training": trained_in.format, "decoding": "bfloat16"}
    rates: dict[PassName, Rates] = {
        name: calibrate(name, format_, trained_in.type) for name, format_ in formats.items()
    }
    makers: dict[PassName, Callable[[tuple[str, ...]], Round]] = {"training": training, "decoding": decoding}
    entrants = {f"{name}: {pass_}": (make, (c,)) for pass_, make in makers.items() for name, c in MODELS.items()}
    speeds = measure(entrants, chosen.rounds)
    ratios, found, processes = dict[str, float](), {}, {}
    print(f"{'':40}{'estimated':>11}{'measured':>11}")
    for name, changes in MODELS.items():
        rows = dict[str, tuple[float, float]]()
        for pass_ in makers:
            costs = cost(config_of(changes), 1, CONTEXT if pass_ == "decoding" else None, formats[pass_])
            estimated = predicted(costs.computed_work[pass_], rates[pass_], costs.tokens[pass_]).tokens_per_second
            rows[f"{pass_}, tok/s"] = estimated, speeds[f"{name}: {pass_}"]["best"]
            if pass_ == "training" and costs.step_memory:
                peak = measure({f"{name}: memory": (memory, (changes,))}, 1)[f"{name}: memory"]["median"]
                rows["training, MiB"] = costs.step_memory.peak / 2**20, peak / 2**20
                processes[name] = speeds[f"{name}: training"]["peak"]
        for row, (before, after) in rows.items():
            label = f"{name}: {row}"
            print(f"{label:40}{before:11,.0f}{after:11,.0f}")
            ratios[label] = exactness(before, after)
            found[label] = {"estimated": round(before, 1), "measured": round(after, 1)}
    return finish(
        "estimates", ratios, {"rounds": chosen.rounds, "results": found, "process_bytes": processes}, check=chosen.check
    )


if __name__ == "__main__":
    sys.exit(main())
