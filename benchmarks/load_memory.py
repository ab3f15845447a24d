"""Claim: loading a published checkpoint takes little more memory than the model itself.

Writes a synthetic Llama-like checkpoint of about 1.5 GB in shards, loads it in a process of its own, and compares the
peak of that process's memory with what it was before. Run: python benchmarks/load_memory.py
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "records" / "load_memory.json"
ALLOWED = 1.2
SIZES = {
    "vocab_size": 32000, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 26,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
SHARD_BYTES = 300 * 10**6


def write_checkpoint(folder: Path) -> int:
    """Synthetic float16 weights, of which the values do not matter; returns their bytes."""
    import torch

    from archlab.families.registry import find_family
    from archlab.hf import tensors
    from archlab.hf.family import Family
    from archlab.hf.weights import placed
    from archlab.model.decoder import Decoder

    family: Family = find_family("llama", "benchmark")
    config = family.model_config(SIZES, "benchmark")
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in Decoder(config, seed=None).named_parameters()}
    tensors.SHARD_BYTES = SHARD_BYTES
    rows = [(row.theirs, shapes[row.ours[0]]) for row in placed(family.weights, config) if row.ours[0] in shapes]
    drawn = ((name, torch.full(shape, 0.01, dtype=torch.float16)) for name, shape in rows)
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float16", **SIZES}
    tensors.write_folder(folder, values, drawn, {})
    return sum(2 * shape.numel() for _, shape in rows)


def load(folder: str) -> dict[str, int]:
    """In a process of its own: its peak memory before and after, in bytes."""
    import torch

    from archlab.exchange.load import load_hf

    torch.ones(64, 64).matmul(torch.ones(64, 64))  # brings in the math library
    before = _peak()
    model = load_hf(Path(folder))
    checksum = sum(float(p.view(-1)[:: 2048 // p.element_size()].float().sum()) for p in model.parameters())
    assert checksum > 0  # every page was read
    return {"before": before, "after": _peak()}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def hardware() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": _gpu(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "safetensors")},
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "llama"
        n_bytes = write_checkpoint(folder)
        shards = len(list(folder.glob("*.safetensors")))
        child = [sys.executable, __file__, "--load", str(folder)]
        found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    ratio = (found["after"] - found["before"]) / n_bytes
    record = {
        "claim": f"peak memory of loading stays under {ALLOWED} times the model",
        "holds": ratio < ALLOWED,
        "ratio": round(ratio, 3),
        "model_bytes": n_bytes,
        "shards": shards,
        "peak_before_bytes": found["before"],
        "peak_after_bytes": found["after"],
        "hardware": hardware(),
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        print(json.dumps(load(sys.argv[2])))
    else:
        sys.exit(main())
