"""Encoding speed of `archlab data`, the tokenizers library and tiktoken with the same vocabulary, in MB/s per core.

Usage:
    python benchmarks/tokenizing.py
    python benchmarks/tokenizing.py --check                  # exit code 1 if a ratio is a tenth below the record
    python benchmarks/tokenizing.py --check --megabytes 4    # a quick try; writes no record.

The text is JSONL of the running Python's standard library, repeated. A byte-level BPE of 32,768 tokens was trained on
it. archlab reads and splits the text, checks that no byte is lost, writes the tokens, hashes them and reads them back.

`archlab data` is all of this with one worker per core. `archlab, encoding` is only the encoding, with one worker and
with all. The libraries only encode texts that are in memory, on one core and on all with their own threads. tiktoken
uses the ranks and the pattern of the same tokenizer.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rounds import Round, finish, measure, options

from archlab.data import encoding
from archlab.data import tokenizer as bpe
from archlab.data.corpus import STDLIB, Corpus
from archlab.data.encoding import encode_pieces
from archlab.data.prepare import prepare
from archlab.data.spelling import spelling
from archlab.data.split import choose_split
from archlab.machine import cores

VOCAB_SIZE = 32_768
TEXT, TOKENIZER = "text.jsonl", "tokenizer.json"
COMMAND, ENCODING = "archlab data", "archlab, encoding"
LIBRARY, TIKTOKEN = "tokenizers", "tiktoken"
ALONE = "one core"


def texts(home: Path) -> list[str]:
    return [document.text for document in Corpus([str(home / TEXT)])]


def timed(home: Path, work: Callable[[], object]) -> Round:
    """Return a round of `work`, in MB/s, after a warm-up."""
    megabytes = sum(len(text.encode()) for text in texts(home)) / 1e6

    def run() -> float:
        start = time.perf_counter()
        work()
        return megabytes / (time.perf_counter() - start)

    run()
    return run


def command(home: Path, workers: int) -> Round:
    """Return a round of everything, from text on disk to a checked data folder."""

    def work() -> None:
        with tempfile.TemporaryDirectory(dir=home) as out:
            os.environ["ARCHLAB_CACHE"] = f"{out}/cache"
            prepare(
                [str(home / TEXT)], Path(out) / "tokens", tokenizer=home / TOKENIZER, held_out=0.05, workers=workers
            )

    return timed(home, work)


def encoder(home: Path, workers: int) -> Round:
    """Return a round from text on disk to tokens in this process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer, corpus = bpe.load(home / TOKENIZER), Corpus([str(home / TEXT)])
    rule = choose_split(corpus, 0.05)

    def work() -> None:
        for _ in encode_pieces(tokenizer, rule.pieces(corpus), rule.characters, workers):
            pass

    return timed(home, work)


def library(home: Path, workers: int) -> Round:
    """Return a round of the library's own batches, as long as archlab's; users of the library read `ids`."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
    tokenizer, in_batches = bpe.load(home / TOKENIZER), batches(texts(home))
    return timed(home, lambda: [[e.ids for e in tokenizer.encode_batch_fast(batch)] for batch in in_batches])


def tiktoken(home: Path, workers: int) -> Round:
    """Return a round of tiktoken with the same tokens, merge order and pattern."""
    from tiktoken import Encoding

    tokenizer = bpe.load(home / TOKENIZER)
    ranks = {spelled: n for n, spelled in spelling(tokenizer).tokens.items() if spelled}
    same = Encoding("same", pat_str=bpe.WORDS, mergeable_ranks=ranks, special_tokens={bpe.END_OF_TEXT: 0})
    sample = texts(home)[:200]
    expected = [ids.tolist() for ids in bpe.encode(tokenizer, sample)]
    if [same.encode_ordinary(text) for text in sample] != expected:
        raise ValueError("tiktoken's tokens differ from archlab's")
    in_batches = batches(texts(home))
    if workers == 1:
        return timed(home, lambda: [[same.encode_ordinary(text) for text in batch] for batch in in_batches])
    return timed(home, lambda: [same.encode_ordinary_batch(batch, num_threads=workers) for batch in in_batches])


def batches(of: list[str]) -> list[list[str]]:
    found, size = list[list[str]]([[]]), 0
    for text in of:
        if size >= encoding.BATCH:
            found.append([])
            size = 0
        found[-1].append(text)
        size += len(text)
    return found


def written(home: Path, megabytes: float) -> None:
    """Write the text and a tokenizer trained on it."""
    library = [document.text for document in Corpus([STDLIB])]
    left = megabytes * 1e6
    with (home / TEXT).open("w", encoding="utf-8") as file:
        while left > 0:
            for text in library:
                if left > 0:
                    file.write(json.dumps({"text": text}) + "\n")
                    left -= len(text.encode())
    (home / TOKENIZER).write_text(bpe.train(library, VOCAB_SIZE).to_str(), encoding="utf-8")


def main() -> int:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--megabytes", type=float, default=64, help="size of the text (default: 64)")
    chosen = parser.parse_args()
    makers = {COMMAND: command, ENCODING: encoder, LIBRARY: library, TIKTOKEN: tiktoken}
    everywhere = f"{cores()} cores"
    with tempfile.TemporaryDirectory() as home:
        written(Path(home), chosen.megabytes)
        entrants = {
            f"{name}, {where}": (make, (Path(home), workers))
            for name, make in makers.items()
            for where, workers in ((ALONE, 1), (everywhere, cores()))
            if not (make is command and workers == 1)
        }
        results = measure(entrants, chosen.rounds)
    speeds = {name: result["median"] for name, result in results.items()}
    print(f"{'':34}{'MB/s':>8}{'per core':>10}")
    for name, speed in speeds.items():
        print(f"{name:34}{speed:8.2f}{speed / (1 if name.endswith(ALONE) else cores()):10.2f}")
    ours = {where: speeds[f"{ENCODING}, {where}"] for where in (ALONE, everywhere)}
    ratios = {
        f"{ENCODING} to {name}, {where}": ours[where] / speeds[f"{name}, {where}"]
        for name in (LIBRARY, TIKTOKEN)
        for where in ours
    }
    ratios[f"{ENCODING}, {everywhere} to {ALONE}"] = ours[everywhere] / ours[ALONE]
    ratios[f"{COMMAND} to {ENCODING}, {everywhere}"] = speeds[f"{COMMAND}, {everywhere}"] / ours[everywhere]
    how = {"megabytes": chosen.megabytes, "rounds": chosen.rounds, "mb_per_second": speeds}
    return finish("tokenizing", ratios, how, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
