"""Measure every claim about GPUs and write one record.

Usage:
    python benchmarks/gpu.py            # an hour, most of it for the grid; exit code 2 without a GPU
    python benchmarks/gpu.py --check    # exit code 1 if a ratio is a tenth below the record.

The claims: training and decoding at 1B parameters compared with other libraries, attention with masks compared with
plain causal attention, and the grid of invariants computed on the GPU.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rounds import Round, finish, measure, options

from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder

HERE = Path(__file__).parent
TESTS = ("tests/invariants/test_grid.py", "tests/invariants/test_numerics.py")
LENGTH, ROWS, PASSES = 4096, 4, 8
LAYER = (
    "model.vocab_size=256", "model.d_model=2048", "model.n_layers=1", "model.mlp.kind=none",
    f"model.max_seq_len={LENGTH}",
)  # fmt: skip
ATTENTIONS = {
    "plain causal": ("model.attention={n_heads: 16, n_kv_heads: 16}",),
    "window 1024": ("model.attention={n_heads: 16, n_kv_heads: 16, window: 1024}",),
    "soft cap": ("model.attention={n_heads: 16, n_kv_heads: 16, softcap: 50}",),
    "GQA": ("model.attention={n_heads: 16, n_kv_heads: 4}",),
    "GQA, window 1024": ("model.attention={n_heads: 16, n_kv_heads: 4, window: 1024}",),
}


def layer(overrides: tuple[str, ...], device: str, length: int) -> Round:
    """Return a round of one attention layer, forward and backward, in bfloat16 tokens per second."""
    config = load_config("tiny-llama", *LAYER, *overrides)
    model = Decoder(config.model).to(device, torch.bfloat16)
    tokens = torch.randint(config.model.vocab_size, (ROWS, length), device=device)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(PASSES):
            model.hidden(tokens).float().square().mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return PASSES * tokens.numel() / (time.perf_counter() - start)

    run()  # compile
    return run


def script(name: str, *arguments: str) -> dict[str, Any]:
    """Run another benchmark, print its table and return its record."""
    command = [sys.executable, str(HERE / name), *arguments]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    print(output)
    records = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(records[-1]) if records else {"ratios": {}, "failed": output[-2000:]}


def limits(train: dict[str, Any], decode: dict[str, Any]) -> dict[str, float]:
    """Return the shares of the GPU's limits: the peak of matrix products, and the bandwidth of a copy."""
    speeds, moved = train.get("results", {}), decode.get("results", {})
    name, step = "archlab compiled bfloat16", "archlab compiled x1"
    found = dict[str, float]()
    if name in speeds and "matmul bfloat16" in speeds:
        used = speeds[name]["median"] * train["flops_per_token"]
        found["compiled training to the peak of products"] = used / speeds["matmul bfloat16"]["median"]
    if step in moved and "copy" in moved:
        used = moved[step]["median"] * decode["bytes_per_token"][step]
        found["compiled decoding to a copy"] = used / moved["copy"]["median"]
    return found


def tested() -> dict[str, Any]:
    """Run the grid and the numerics on the GPU. Return the last line of pytest and whether all tests passed."""
    command = [sys.executable, "-m", "pytest", *TESTS, "--device", "cuda", "--tb=line"]
    run = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
    print(run.stdout[-2000:])
    return {"passed": run.returncode == 0, "summary": run.stdout.strip().splitlines()[-1:]}


def main() -> int:
    chosen = options(__doc__, rounds=5).parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch finds no CUDA device; this benchmark needs one")
        return 2
    rounds = ("--rounds", str(chosen.rounds), *(("--check",) if chosen.check else ()))
    found = {
        "train": script("train.py", "--shape", "1b", "--modes", "compiled", "--formats", "bfloat16", *rounds),
        "decode": script("decode.py", "--shape", "1b", "--batch", "1", *rounds),
    }
    layers = measure({name: (layer, (text, "cuda", LENGTH)) for name, text in ATTENTIONS.items()}, chosen.rounds)
    ratios = {f"{name}, {what}": r for name, record in found.items() for what, r in record["ratios"].items()}
    for name, result in layers.items():
        plain = layers["plain causal"]["median"]
        print(f"{name:24}{result['median']:12,.0f} tok/s{result['median'] / plain:8.2f} of plain causal")
        ratios[f"{name} to plain causal"] = result["median"] / plain
    ratios |= limits(found["train"], found["decode"])
    tests = tested()
    code = finish("gpu", ratios, {**found, "layers": layers, "tests": tests}, check=chosen.check)
    return code or int(not tests["passed"])


if __name__ == "__main__":
    sys.exit(main())
