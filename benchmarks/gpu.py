"""Measure what differs on a GPU, in five parts, and merge them into one record.

Needs `pip install -e '.[bench,dev]'`. Usage:
    python benchmarks/gpu.py                   # all parts
    python benchmarks/gpu.py --part kernels
    python benchmarks/gpu.py --merge
    python benchmarks/gpu.py --merge --check   # exit code 1 if a ratio is a tenth below the record.

`--merge` writes the record from the parts that were measured before.

The part `kernels` compares logits and gradients with float64, resumes a run that was killed, and makes a profile. The
part `train` compares training at 1B parameters with other libraries and with the peak of matrix products. The part
`decode` compares decoding at 1B parameters with transformers and with the bandwidth of a copy, and the logits of
compiled steps with float64. The part `layers` compares layers with plain causal attention: attention with masks,
mixtures and recurrent mixers. The part `grid` tests the invariants for some configs of the grid, and compares counted
memory with measured memory.

Each entrant has a process and a time limit of its own. Its result is written at once, so a part that is killed loses at
most one entrant. A part that is started again goes on with the entrants that have no result. It begins again if the
hardware, the code of archlab or that of the benchmarks has changed.
"""

import hashlib
import json
import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from decode import copying
from gpu_entrants import (
    agreement,
    decoded,
    decoding,
    layer,
    memory,
    passed,
    profiled,
    read_per_token,
    resumed,
    speed,
    tests_of,
)
from peers import SHAPES
from rounds import finish, hardware, options
from train import flops_per_token, matmul, ours, peer

from archlab.files import write_atomic
from archlab.training.code_digest import code_digest

CUDA = "cuda"
SHAPE = "1b"
FORMATS = ("bfloat16", "float32")
LENGTHS, CONTEXTS = (4096, 16384), (64, 8192)
N_CONFIGS = 40

HEADS = "model.attention={n_heads: 16, n_kv_heads: 16"
ATTENTIONS = {
    "plain causal": f"{HEADS}}}",
    "window": f"{HEADS}, window: 1024}}",
    "soft cap": f"{HEADS}, softcap: 50}}",
    "sinks": f"{HEADS}, sinks: true}}",
    "GQA": "model.attention={n_heads: 16, n_kv_heads: 4}",
    "GQA, window": "model.attention={n_heads: 16, n_kv_heads: 4, window: 1024}",
    "GQA, sinks": "model.attention={n_heads: 16, n_kv_heads: 4, sinks: true}",
}
LAYERS = {
    "mixture": (
        "model.attention=none",
        "model.position=none",
        "model.mlp={kind: moe, d_ff: 1024, experts: 16, active: 2}",
    ),
    "Mamba 2": ("model.attention=none", "model.position=none", "model.mlp=none", "model.mixer=mamba2"),
    "gated delta": ("model.attention=none", "model.position=none", "model.mlp=none", "model.mixer=gated_delta"),
}
COMPARED = {
    "causal": "model.attention={n_heads: 4, n_kv_heads: 4}",
    "GQA": "model.attention={n_heads: 4, n_kv_heads: 2}",
    "window": "model.attention={n_heads: 4, n_kv_heads: 2, window: 50}",
    "soft cap": "model.attention={n_heads: 4, n_kv_heads: 2, softcap: 5}",
    "sinks": "model.attention={n_heads: 4, n_kv_heads: 2, sinks: true}",
    "heads of 8": "model.attention={n_heads: 4, head_dim: 8, n_kv_heads: 2, window: 50}",
    "heads of 256": "model.attention={n_heads: 2, head_dim: 256, n_kv_heads: 1, window: 50}",
    "narrow values": "model.attention={n_heads: 4, head_dim: 64, v_dim: 16}",
    "latent": "model.attention={kind: latent, n_heads: 4, kv_rank: 64, nope_dim: 32, rope_dim: 32, v_dim: 32}",
    "ALiBi": "model.position.kind=alibi",
    "LayerNorm": "model.norm.kind=layernorm",
    "mamba": "model.mixer=mamba",
    "mamba2": "model.mixer=mamba2",
    "gated_delta": "model.mixer=gated_delta",
    "kimi_delta": "model.mixer=kimi_delta",
    "rglru": "model.mixer=rglru",
}
MEMORY = {
    "dense": ("model.d_model=1024", "model.n_layers=8", "model.attention={n_heads: 16}", "model.mlp.d_ff=2816"),
    "large vocabulary": ("model.vocab_size=131072", "model.d_model=512"),
    "mixture": ("model.d_model=512", "model.mlp={kind: moe, d_ff: 512, experts: 16, active: 2}"),
}


@dataclass(frozen=True)
class Entrant:
    work: Callable[..., dict[str, Any]]
    """Function that measures and returns numbers. If it judges them, `passed` is one of them."""
    arguments: tuple[Any, ...] = ()
    limit: int = 150
    """Number of seconds after which its process is killed."""


def kernels() -> Iterator[tuple[str, Entrant]]:
    for name, override in COMPARED.items():
        yield name, Entrant(agreement, ((override,), "auto", FORMATS, CUDA))
    yield "packed", Entrant(agreement, ((COMPARED["GQA"],), "auto", FORMATS, CUDA, True))
    for kernel in ("sdpa", "blocked", "flex", "products"):
        yield f"GQA by {kernel}", Entrant(agreement, ((COMPARED["GQA"],), kernel, FORMATS, CUDA))
    experts = "model.mlp={kind: moe, d_ff: 64, experts: 8, active: 2}"
    # In bfloat16, rounding changes which experts are chosen.
    yield "mixture", Entrant(agreement, ((experts,), "auto", ("float32",), CUDA))
    yield "kill and resume", Entrant(resumed, (CUDA,))
    yield "profile", Entrant(profiled, ("mini-llama", CUDA))


def train() -> Iterator[tuple[str, Entrant]]:
    how = (SHAPES[SHAPE], "compiled", "bfloat16")
    yield "archlab", Entrant(speed, (ours, how, CUDA), 240)
    for library in ("transformers", "litgpt"):
        yield library, Entrant(speed, (peer, (library, *how), CUDA), 240)
    yield "matmul", Entrant(speed, (matmul, ("bfloat16",), CUDA))


def decode() -> Iterator[tuple[str, Entrant]]:
    modes = {"archlab": ("eager", "compiled", "compiled int8"), "transformers": ("eager", "compiled")}
    for context, library in product(CONTEXTS, modes):
        for mode in modes[library]:
            arguments = (library, mode, context, SHAPE, CUDA)
            yield f"{library} {mode} at {context}", Entrant(speed, (decoding, arguments, CUDA))
    yield "copy", Entrant(speed, (copying, (), CUDA))
    for name in ("GQA", "window", "soft cap", "sinks"):
        yield f"{name}, values", Entrant(decoded, ((COMPARED[name],), "bfloat16", CUDA))


def layers() -> Iterator[tuple[str, Entrant]]:
    for length in LENGTHS:
        for name, attention in ATTENTIONS.items():
            yield f"{name} at {length}", _layer((attention, "model.mlp=none"), length)
        yield f"packed at {length}", _layer((ATTENTIONS["plain causal"], "model.mlp=none"), length, True)
        for name, overrides in LAYERS.items():
            yield f"{name} at {length}", _layer(overrides, length)


def _layer(overrides: tuple[str, ...], length: int, packed: bool = False) -> Entrant:
    return Entrant(speed, (layer, (overrides, length, CUDA, packed), CUDA))


def grid() -> Iterator[tuple[str, Entrant]]:
    for name, overrides in MEMORY.items():
        yield f"memory, {name}", Entrant(memory, (overrides, CUDA))
    for name, ids in tests_of(N_CONFIGS, CUDA).items():
        yield name, Entrant(passed, (ids, CUDA), 240)


PARTS: dict[str, Callable[[], Iterator[tuple[str, Entrant]]]] = {
    "kernels": kernels,
    "train": train,
    "decode": decode,
    "layers": layers,
    "grid": grid,
}


def alone(entrant: Entrant) -> dict[str, Any]:
    """Return the result of an entrant, measured in a process of its own, or why there is none as `failed`."""
    receiver, sender = mp.get_context("spawn").Pipe(duplex=False)
    process = mp.get_context("spawn").Process(target=_answer, args=(sender, entrant))
    process.start()
    assert process.pid
    sender.close()
    try:
        return receiver.recv() if receiver.poll(entrant.limit) else {"failed": f"it took longer than {entrant.limit} s"}
    except EOFError:
        process.join()
        return {"failed": f"its process died (exit code {process.exitcode})"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        process.kill()
        process.join()
        receiver.close()


def _answer(connection: Connection, entrant: Entrant) -> None:
    os.setsid()
    try:
        connection.send(entrant.work(*entrant.arguments))
    except Exception as error:
        connection.send({"failed": f"{type(error).__name__}: {str(error)[:300]}"})


def measure_part(entrants: Iterator[tuple[str, Entrant]], file: Path) -> None:
    """Measure the entrants that have no result in the part's file. Write the file after each of them."""
    where = {"hardware": hardware(), "code": f"{code_digest()}, {_digest_of_benchmarks()}"}
    before = json.loads(file.read_text()) if file.exists() else {}
    results = before["results"] if {key: before.get(key) for key in where} == where else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, entrant in entrants:
        if "failed" not in results.get(name, {"failed": ""}):
            continue
        results[name] = alone(entrant)
        print(f"{file.stem}: {name}: {json.dumps(results[name])[:300]}", flush=True)
        write_atomic(file, json.dumps({**where, "results": results}) + "\n")


def _digest_of_benchmarks() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def merge(folder: Path, *, check: bool) -> int:
    """Merge the parts in a folder into one record. Return the exit code."""
    parts = {name: json.loads(file.read_text()) for name in PARTS if (file := folder / f"{name}.json").exists()}
    if not parts:
        print(f"benchmarks/gpu.py: {folder} has no part; measure one with --part {next(iter(PARTS))}")
        return 2
    first = next(iter(parts.values()))
    for name, part in parts.items():
        if (part["hardware"], part["code"]) != (first["hardware"], first["code"]):
            print(f"benchmarks/gpu.py: {name} was measured on other hardware or with other code; measure it again")
            return 2
    results = {name: part["results"] for name, part in parts.items()}
    wrong = [
        f"{part}: {name}"
        for part, of_part in results.items()
        for name, result in of_part.items()
        if "failed" in result or not result.get("passed", True)
    ]
    missing = [name for name in PARTS if name not in parts]
    print(*(f"not measured: {name}" for name in missing), *(f"wrong: {name}" for name in wrong), sep="\n")
    about = {"code": first["code"], "missing": missing, "wrong": wrong, "parts": results}
    code = finish("gpu", ratios(results), about, check=check, measured_on=first["hardware"])
    return code or int(bool(wrong))


def ratios(results: Mapping[str, Mapping[str, dict[str, Any]]]) -> dict[str, float]:
    """Return the ratios that the measured parts allow. A higher ratio is better."""
    found = dict[str, float]()
    speeds = {part: {n: r["median"] for n, r in of_part.items() if "median" in r} for part, of_part in results.items()}
    of_train, of_decode, of_layers = (speeds.get(part, {}) for part in ("train", "decode", "layers"))
    peers = [of_train[name] for name in ("transformers", "litgpt") if name in of_train]
    if "archlab" in of_train and peers:
        found["training to the fastest library"] = of_train["archlab"] / max(peers)
    if "archlab" in of_train and "matmul" in of_train:
        found["training to the peak of products"] = (
            of_train["archlab"] * flops_per_token(SHAPES[SHAPE]) / of_train["matmul"]
        )
    for context in CONTEXTS:
        fastest = max(
            (s for n, s in of_decode.items() if n.startswith("transformers") and n.endswith(f" {context}")),
            default=None,
        )
        for name, value in of_decode.items():
            if fastest and name.startswith("archlab") and name.endswith(f" {context}"):
                found[f"decoding to transformers: {name.removeprefix('archlab ')}"] = value / fastest
        if (name := f"archlab compiled at {context}") in of_decode and "copy" in of_decode:
            used = of_decode[name] * read_per_token(SHAPE, context)
            found[f"decoding to a copy: compiled at {context}"] = used / of_decode["copy"]
    for name, value in of_layers.items():
        plain = of_layers.get(f"plain causal at {name.rpartition(' ')[2]}")
        if plain and not name.startswith("plain"):
            found[f"{name} to plain causal"] = value / plain
    for name, result in results.get("grid", {}).items():
        if "counted" in result:
            both = result["counted"], result["measured"]
            found[f"{name}: counted and measured"] = min(both) / max(both)
    return found


def main() -> int:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--part", choices=PARTS, help="measure this part alone")
    parser.add_argument("--merge", action="store_true", help="measure nothing; merge the parts that were measured")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/gpu"), help="folder of the parts (default: build/gpu)"
    )
    chosen = parser.parse_args()
    if chosen.merge:
        return merge(chosen.folder, check=chosen.check)
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch finds no CUDA device; this benchmark needs one")
        return 2
    for name in [chosen.part] if chosen.part else PARTS:
        measure_part(PARTS[name](), chosen.folder / f"{name}.json")
    return 0 if chosen.part else merge(chosen.folder, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
