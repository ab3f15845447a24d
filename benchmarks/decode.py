"""Decoding speed of archlab and transformers, in tokens/s, and the share of the memory bandwidth that archlab uses.

Needs `pip install -e '.[bench]'`. Usage:
    python benchmarks/decode.py                # 15.7M parameters, bfloat16, batches of 1 and 16
    python benchmarks/decode.py --shape 243m --batch 1
    python benchmarks/decode.py --attention    # MHA, GQA, MQA and latent attention; 8,192 tokens in the cache.
"""

import sys
import time
from typing import Any

import torch
from peers import SHAPES, Shape, archlab_overrides, build_transformers
from rounds import Round, finish, measure, options

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPT, TOKENS = 16, 48
"""Length of the prompt; number of tokens generated per round."""

ATTENTIONS = {
    "MHA": "{n_heads: 16, n_kv_heads: 16}",
    "GQA": "{n_heads: 16, n_kv_heads: 4}",
    "MQA": "{n_heads: 16, n_kv_heads: 1}",
    "latent": "{kind: latent, n_heads: 16, kv_rank: 256, rope_dim: 32, nope_dim: 64, v_dim: 64}",
}


def transformers(shape: Shape, mode: str, format_: str, batch: int) -> Round:
    """Return a round of transformers' `generate`. When compiled, it uses the static cache."""
    model: Any = build_transformers(shape).to(DEVICE, getattr(torch, format_)).eval()
    text = torch.ones(batch, PROMPT, dtype=torch.int64, device=DEVICE)
    options = {"cache_implementation": "static"} if mode == "compiled" else {}
    if mode == "compiled":
        model.forward = torch.compile(model.forward, dynamic=False)

    def run() -> float:
        start = time.perf_counter()
        model.generate(
            text, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, **options
        )  # read the prompt inside it, as archlab does
        return batch * TOKENS / (time.perf_counter() - start)

    run()
    return run


def ours(overrides: list[str], mode: str, format_: str, batch: int, context: int = PROMPT) -> Round:
    """Return a round of `archlab.generate`."""
    from archlab.exchange.configs import load_config
    from archlab.infer.generate import generate
    from archlab.infer.int8 import to_int8
    from archlab.machine import keep_freed_memory
    from archlab.model.decoder import Decoder

    keep_freed_memory()
    model = Decoder(load_config("tiny-llama", *overrides).model).to(DEVICE, getattr(torch, format_)).eval()
    model = to_int8(model) if "int8" in mode else model
    text = torch.ones(batch, context, dtype=torch.int64)

    def run() -> float:
        start = time.perf_counter()
        generate(model, text, TOKENS, compile="compiled" in mode)
        return batch * TOKENS / (time.perf_counter() - start)

    run()
    return run


def long(attention: str, format_: str, context: int) -> Round:
    """Return a round of decoding steps after `context` tokens."""
    from archlab.exchange.configs import load_config
    from archlab.infer.session import Session
    from archlab.model.decoder import Decoder

    size = ("model.d_model=1024", "model.n_layers=4", f"model.max_seq_len={context + 4096}")
    config = load_config("tiny-llama", *size, f"model.attention={attention}")
    model = Decoder(config.model).to(DEVICE, getattr(torch, format_)).eval()
    session = Session(model, torch.ones(1, context, dtype=torch.int64), context + 4096, compile=True)
    session.logits()

    def run() -> float:
        start = time.perf_counter()
        for _ in session.write(TOKENS):
            pass
        return TOKENS / (time.perf_counter() - start)

    run()
    return run


def copying() -> Round:
    """Return a round of a large copy, in bytes read and written per second: the upper limit."""
    from archlab.training.processor_speed import copy_bandwidth

    return lambda: copy_bandwidth(DEVICE)


def bytes_per_token(overrides: list[str], context: int, format_: Any) -> int:
    """Return the bytes of weights and cache that one step reads."""
    from archlab.exchange.configs import load_config
    from archlab.pricing.summary import cost

    return cost(load_config("tiny-llama", *overrides), 1, context, format_).read_bytes_per_decoded_token or 0


def main() -> int:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--shape", choices=SHAPES, default="15.7m")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--format", default="bfloat16")
    parser.add_argument("--attention", action="store_true")
    chosen = parser.parse_args()
    shape, context = SHAPES[chosen.shape], 8192
    overrides = archlab_overrides(shape)
    if chosen.attention:
        entrants: dict[str, Any] = {name: (long, (text, chosen.format, context)) for name, text in ATTENTIONS.items()}
        size = ["model.d_model=1024", "model.n_layers=4", f"model.max_seq_len={context + 4096}"]
        read = {
            name: bytes_per_token([*size, f"model.attention={text}"], context, chosen.format)
            for name, text in ATTENTIONS.items()
        }
    else:
        entrants = {
            f"{name} {mode} x{batch}": (make, (about, mode, chosen.format, batch))
            for batch in chosen.batch
            for name, make, about in (("transformers", transformers, shape), ("archlab", ours, overrides))
            for mode in ("eager", "compiled")
        }
        entrants |= {
            f"archlab compiled int8 x{batch}": (ours, (overrides, "compiled int8", chosen.format, batch))
            for batch in chosen.batch
        }
        read = {
            name: bytes_per_token(overrides, PROMPT + TOKENS, chosen.format)
            for name in entrants
            if name.endswith(" x1") and "int8" not in name
        }
    results = measure({**entrants, "copy": (copying, ())}, chosen.rounds)
    copied = results["copy"]["median"]
    print(f"{'':30}{'tok/s':>9}{'read':>12}{'of a copy':>11}")
    for name in (name for name in results if name in entrants):
        speed, gigabytes = results[name]["median"], read.get(name, 0) * results[name]["median"]
        used = f"{gigabytes / 1e9:7.1f} GB/s{gigabytes / copied:11.0%}" if gigabytes else ""
        print(f"{name:30}{speed:9,.1f}{used}")
    name = "decode-attention" if chosen.attention else f"decode-{chosen.shape}"
    about = {"format": chosen.format, "bytes_per_token": read, "rounds": chosen.rounds, "results": results}
    return finish(name, ratios(results, chosen.batch), about, check=chosen.check)


def ratios(results: dict[str, dict[str, float]], batches: list[int]) -> dict[str, float]:
    """Return the speed of each way to decode, divided by the faster of transformers' two ways."""
    found: dict[str, float] = {}
    for batch in batches:
        end = f" x{batch}"
        peers = [r["median"] for name, r in results.items() if name.startswith("transformers") and name.endswith(end)]
        for name, result in results.items():
            if peers and name.startswith("archlab") and name.endswith(end):
                found[name] = round(result["median"] / max(peers), 2)
    return found


if __name__ == "__main__":
    sys.exit(main())
