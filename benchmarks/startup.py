"""Startup time of archlab: from the start of a process to its first training step, and to open prepared data again.

Usage:
    python benchmarks/startup.py
    python benchmarks/startup.py --check    # exit code 1 if a ratio is a tenth below the record.

Each start is a fresh process. Data that a run prepares only once is already prepared. Ratios are relative to `import
torch`, which every start needs. The folder with 2,000M tokens consists of sparse files. It needs no disk space, and no
disk is measured. Reading all of it again would take as long as opening it the first time.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import Round, finish, measure, options

from archlab.data import tokenizer as bpe
from archlab.data.file_cache import SETTLED
from archlab.data.shards import FORMAT, MANIFEST, SHARD_TOKENS, DataFolder, FoldShards, Manifest, Shard
from archlab.digests import sha256
from archlab.hf.folder import TOKENIZER

TOKENS = 2_000_000_000
TRAIN = ("-m", "archlab", "train", "tiny-llama")
TORCH = "import torch"
STARTS = {
    TORCH: ("-c", "import torch"),
    "archlab --help": ("-m", "archlab", "--help"),
    "archlab cost tiny-llama": ("-m", "archlab", "cost", "tiny-llama"),
    "import archlab.training.train": ("-c", "import archlab.training.train"),
    "first step, one window held out": (*TRAIN, "train.eval_tokens=256"),
    "first step": TRAIN,
}
"""Name -> arguments of a Python process. The last two are stopped after their first training step."""
OPENINGS = "first opening, every byte hashed", "opened again"


def started(arguments: tuple[str, ...]) -> Round:
    """Return a round of one start, in starts per second. It ends with the process or the first training step."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder) / "run" / "metrics.jsonl"
            out = ("--out", str(metrics.parent)) if "train" in arguments else ()
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *arguments, *out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            while process.poll() is None and not (metrics.exists() and '"lr"' in metrics.read_text()):
                time.sleep(0.002)
            took = time.perf_counter() - start
            failed = process.poll()
            process.kill()
            errors = process.communicate()[1]
        if failed:
            raise SystemExit(errors.decode())
        return 1 / took

    run()  # prepare the text
    return run


def opened(home: Path, again: bool) -> Round:
    """Return a round that opens a data folder, with an empty cache or (`again`) with the cache that remembers the
    folder."""
    os.environ["ARCHLAB_CACHE"] = tempfile.mkdtemp(dir=home)

    def run() -> float:
        if not again:
            os.environ["ARCHLAB_CACHE"] = tempfile.mkdtemp(dir=home)
        start = time.perf_counter()
        DataFolder.open(home / "data")
        return 1 / (time.perf_counter() - start)

    run()
    return run


def made_up(folder: Path) -> None:
    """Write a data folder of zeros, which are valid tokens."""
    folder.mkdir()
    tokenizer = bpe.train(["some text"], bpe.SMALLEST_VOCAB)
    vocab_size, (end,) = bpe.vocab_size(tokenizer), bpe.document_tokens(tokenizer)
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    rest, fold = (_hollow(folder, part, tokens) for part, tokens in (("rest", TOKENS), ("fold-00", TOKENS // 100)))
    manifest = Manifest(
        format=FORMAT, source="made up", skipped=0, key="", vocab_size=vocab_size, dtype="uint16", end_of_text=end,
        tokenizer_sha256=sha256(folder / TOKENIZER), rest=rest, folds=(fold,),
    )  # fmt: skip
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    time.sleep(SETTLED / 1e9 + 0.1)  # files written just now are not remembered yet


def _hollow(folder: Path, name: str, tokens: int) -> FoldShards:
    shards, digests = list[Shard](), dict[int, str]()
    for number, first in enumerate(range(0, tokens, SHARD_TOKENS)):
        file, size = folder / f"{name}-{number:05d}.bin", min(tokens - first, SHARD_TOKENS)
        file.touch()
        os.truncate(file, 2 * size)
        digests[size] = digests.get(size) or sha256(file)
        shards.append(Shard(file=file.name, tokens=size, sha256=digests[size]))
    return FoldShards(tokens=tokens, bytes=tokens, documents=tokens, shards=tuple(shards))


def main() -> int:
    chosen = options(__doc__, rounds=5).parse_args()
    with tempfile.TemporaryDirectory() as home:
        made_up(Path(home) / "data")
        first, again = OPENINGS
        starts = {name: (started, (arguments,)) for name, arguments in STARTS.items()}
        openings = {name: (opened, (Path(home), name == again)) for name in OPENINGS}
        results = measure({**starts, **openings}, chosen.rounds)
    seconds = {name: 1 / result["median"] for name, result in results.items()}
    print(f"{'':40}{'seconds':>9}")
    for name, median in seconds.items():
        print(f"{name:40}{median:9.3f}")
    ratios = {f"{TORCH} to {name}": seconds[TORCH] / seconds[name] for name in STARTS if name != TORCH}
    ratios[f"{first} to {again}"] = seconds[first] / seconds[again]
    return finish(
        "startup",
        ratios,
        {"seconds": {n: round(s, 4) for n, s in seconds.items()}, "rounds": chosen.rounds},
        check=chosen.check,
    )


if __name__ == "__main__":
    sys.exit(main())
