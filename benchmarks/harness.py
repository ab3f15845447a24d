"""Compare the answers of archlab's plug-in for lm_eval with those of lm_eval's own `hf` model, for the same weights.

Usage:
    python benchmarks/harness.py RUN    # exit code 1 if they differ.

Needs the extra `lm-eval`, accelerate and transformers; downloads nothing. It compares three folders: the run, its
export, and the export with a tokenizer that puts no token before a text.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from rounds import help_of

from archlab.hf.folder import TOKENIZER
from archlab.infer.import_export import export_model

NEAR = 1e-4
"""Largest allowed difference between two sums of log-likelihoods in float32, in nats."""

WORDS = (
    "def class return import self for while if else try except None True False print len range open str list".split()  # noqa: SIM905
)


def requests() -> tuple[list[Any], list[Any], list[Any]]:
    """Return pairs, whole texts and prompts. A few pairs have no context or are longer than the model's context."""
    draw = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    pairs = [(context, f" {text(1, 4)}") for context in (text(3, 14) for _ in range(40)) for _ in range(4)]
    pairs += [("", text(2, 9)) for _ in range(20)] + [(text(80, 120), f" {text(1, 3)}") for _ in range(20)]
    how = {"until": ["\n", ")"], "max_gen_toks": 12, "do_sample": False, "num_beams": 1, "top_p": 0.9}
    asked = (pairs, [(text(30, 90),) for _ in range(40)], [(text(3, 14), how) for _ in range(40)])
    return tuple([SimpleNamespace(args=args) for args in arguments] for arguments in asked)  # pyright: ignore[reportReturnType]


def compared(path: Path, reference: Any, length: int) -> dict[str, Any]:
    """Return the largest differences between archlab's answers and the reference's."""
    from archlab.infer.harness import ArchlabLM

    ours = ArchlabLM(str(path), max_length=length, dtype="float32", device="cpu")
    pairs, texts, prompts = requests()
    likely = list(zip(ours.loglikelihood(pairs), reference.loglikelihood(pairs), strict=True))
    whole = list(zip(ours.loglikelihood_rolling(texts), reference.loglikelihood_rolling(texts), strict=True))
    written = list(zip(ours.generate_until(prompts), reference.generate_until(prompts), strict=True))
    return {
        "of": path.name,
        "pairs": max(abs(a[0] - b[0]) for a, b in likely),
        "texts, per nat": max(abs(a - b) / abs(b) for a, b in whole),
        "other greedy flags": sum(a[1] != b[1] for a, b in likely),
        "other texts": sum(a != b for a, b in written),
    }


def main(length: int = 64) -> int:
    """Print a line of JSON for each folder. Return 1 if one of them differs."""
    parser = help_of(__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    run = parser.parse_args().run
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as home:
        export, bare = Path(home) / "export", Path(home) / "bare"
        found = []
        for folder in (export, bare):
            export_model(run, folder)
            if folder is bare:
                parts = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
                (folder / TOKENIZER).write_text(json.dumps(parts | {"post_processor": None}), encoding="utf-8")
            hf = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=8, max_length=length)
            found += [compared(path, hf, length) for path in ((run, folder) if folder is export else (folder,))]
    for line in found:
        print(json.dumps(line))
    return int(any(max(line["pairs"], line["texts, per nat"]) > NEAR or line["other texts"] for line in found))


if __name__ == "__main__":
    sys.exit(main())
