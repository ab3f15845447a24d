"""Peak memory of training and evaluation on long texts and with a large vocabulary, and of loading a checkpoint.

Usage:
    python benchmarks/memory.py
    python benchmarks/memory.py --check    # exit code 1 if a ratio is a tenth below the record.

There are three claims. Each one is a ratio, and a higher ratio is better.
1. Memory per token does not grow from 4k to 32k tokens of text, with and without a window. The ratio is 1. A pass has
   32k tokens at every length.
2. The logits of a vocabulary of 128k are never held whole in float32. The ratio is their size divided by the peak
   memory of a training step or of an evaluation.
3. Loading a published checkpoint needs little more memory than the model. The ratio is the model's size divided by the
   peak.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rounds import Round, finish, measure, options

from archlab.data.batch import HeldOut, next_token
from archlab.data.training_data import Windows
from archlab.exchange import save
from archlab.exchange.configs import load_config
from archlab.exchange.load import load_hf
from archlab.families.registry import find_family
from archlab.hf.family import Family
from archlab.hf.weight_map import placed
from archlab.machine import keep_freed_memory
from archlab.measuring.speed import rehearse
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.evaluate import predict

TOKENS, LENGTHS = 32_768, (4096, 16_384, 32_768)
ARMS = {"full": (), "window 512": ("model.attention.window=512",)}
VOCABULARY, ITS_TOKENS, ITS_LENGTH = 131_072, 8192, 2048
SHAPE = ("model.d_model=128", "model.n_layers=2", "model.attention={n_heads: 2, n_kv_heads: 2}", "model.mlp.d_ff=384")
SIZES = {
    "vocab_size": 32000, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 26,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
SHARD_BYTES = 300 * 10**6
CPU = Device("cpu", torch.float32)


def training(overrides: tuple[str, ...], vocabulary: int, length: int, tokens: int) -> Round:
    """Return a round of one step with a z-loss and a soft cap, which need the logits, too."""
    more = ("model.head.softcap=30", "train.z_loss=1e-4", f"train.seq_len={length}", f"train.batch_tokens={tokens}")
    size = (f"model.vocab_size={vocabulary}", f"model.max_seq_len={length}", *overrides)
    where = ("train.device=cpu", "train.dtype=float32", "train.compile=false")
    return once(rehearse(load_config("tiny-llama", *SHAPE, *size, *more, *where)).step)


def evaluation(overrides: tuple[str, ...], vocabulary: int, length: int, tokens: int) -> Round:
    """Return a round that evaluates held-out text as training and `archlab eval` do."""
    model, windows = made((*overrides, "model.head.softcap=30"), vocabulary, length, tokens)
    counts = np.ones(vocabulary, dtype=np.int64)
    text = Windows.of_text(windows, counts, (-1,), continues=np.zeros(len(windows), bool))
    held_out = HeldOut(next_token(text), text)
    return once(lambda: predict(model, held_out, CPU, batch_tokens=tokens + length).score(held_out))


def made(overrides: tuple[str, ...], vocabulary: int, length: int, tokens: int) -> tuple[Decoder, np.ndarray]:
    """Return a small model and random text."""
    keep_freed_memory()
    config = load_config(
        "tiny-llama", *SHAPE, f"model.vocab_size={vocabulary}", f"model.max_seq_len={length}", *overrides
    )
    return Decoder(config.model), np.random.default_rng(0).integers(0, vocabulary, (tokens // length, length + 1))


def loading(folder: str) -> Round:
    """Return a round that loads a published model and reads every page of it."""

    def load() -> None:
        model = load_hf(Path(folder))
        assert (
            sum(float(p.view(-1)[:: 2048 // p.element_size()].float().sum()) for p in model.state_dict().values()) > 0
        )

    return once(load)


def once(work: Callable[[], object]) -> Round:
    """Return a round that only counts for its peak memory."""

    def run() -> float:
        work()
        return 1.0

    return run


def write_checkpoint(folder: Path) -> int:
    """Write synthetic float16 weights of 1.5 GB and return their bytes. Their values do not matter."""
    family: Family = find_family("llama", "benchmark")
    config = family.model_config(SIZES, "benchmark")
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in Decoder(config, seed=None).named_parameters()}
    save.SHARD_BYTES = SHARD_BYTES
    rows = [(row.theirs, shapes[row.ours[0]]) for row in placed(family.weights, config) if row.ours[0] in shapes]
    drawn = ((name, torch.full(shape, 0.01, dtype=torch.float16)) for name, shape in rows)
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float16", **SIZES}
    save.write_folder(folder, values, drawn, {})
    return sum(2 * shape.numel() for _, shape in rows)


def main() -> int:
    """Measure one entrant after the other, because they share the machine's memory."""
    chosen = options(__doc__, rounds=1).parse_args()
    peaks = dict[str, int]()

    def peak(name: str, make: Callable[..., Round], *arguments: object) -> int:
        peaks[name] = measure({name: (make, arguments)}, chosen.rounds)[name]["peak"]
        return peaks[name]

    ratios = dict[str, float]()
    for arm, overrides in ARMS.items():
        for make in (training, evaluation):
            by_length = [peak(f"{make.__name__} at {n}, {arm}", make, overrides, 2048, n, TOKENS) for n in LENGTHS]
            ratios[f"{make.__name__} at {LENGTHS[0]} to {LENGTHS[-1]}, {arm}"] = by_length[0] / by_length[-1]
    logits = 4 * VOCABULARY * ITS_TOKENS
    for make in (training, evaluation):
        found = peak(f"{make.__name__}, large vocabulary", make, (), VOCABULARY, ITS_LENGTH, ITS_TOKENS)
        ratios[f"float32 logits to {make.__name__}"] = logits / found
    with tempfile.TemporaryDirectory() as folder:
        n_bytes = write_checkpoint(Path(folder) / "llama")
        ratios["model to loading"] = n_bytes / peak("loading", loading, f"{folder}/llama")
    print(f"{'':40}{'peak':>9}")
    for name, found in peaks.items():
        print(f"{name:40}{found / 2**20:5,.0f} MiB")
    print(f"{'(all logits in float32)':40}{logits / 2**20:5,.0f} MiB")
    return finish("memory", ratios, {"peaks": peaks, "float32_logits": logits}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
