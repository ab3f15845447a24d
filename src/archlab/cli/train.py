"""`archlab train`."""

import os
from pathlib import Path

from archlab.cli.loading import load_with_notes
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.review.findings import warnings
from archlab.review.lines import in_one_line


def run(config: str, /, *overrides: str, out: Path) -> int:
    """Train a model. Run again, it goes on where it stopped. Exit code 1: the training diverged.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id; of a folder its config is taken,
        not its weights.
    overrides
        Fields to change, as in train.lr=3e-3.
    out
        The run's folder: config, metrics, checkpoints, summary. One made by `archlab import` begins with its weights.
    """
    from archlab.config.text import note
    from archlab.train.loop import train

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("torchrun: archlab does not train on several processes yet; run it once, without torchrun")
    loaded = load_with_notes(config, overrides)
    if found := warnings(loaded):
        note(in_one_line(found))
    plan = resolve_train(loaded)
    if plan.trained < plan.tokens:
        note(f"{plan.tokens:,} tokens are {plan.trained:,} in whole batches of {plan.batch_tokens:,}")
    summary = train(loaded, out)
    if summary.status == "diverged":
        print(f"diverged after {summary.steps} steps: {summary.why}; see {out}")
        return 1
    print(
        f"{summary.result} after {summary.tokens:,} tokens "
        f"({summary.tokens_per_second:,.0f} tok/s, MFU {summary.mfu:.0%}, "
        f"{summary.dtype} on {summary.device})"
    )
    print(out)
    return 0
