"""`archlab train`."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from archlab.cli.arguments import load_and_notes
from archlab.config.core.text import collected_notes
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.review.findings import in_one_line, warnings

_PATIENCE = 5.0
"""Seconds that the others wait with an error: mostly the first process has the same, or they miss one that has ended,
and torchrun then ends them."""


def run(config: str, /, *overrides: str, out: Path) -> int:
    """Train a model. Run again, it goes on where it stopped. Exit code 1: the training diverged.

    Before its first step it prints where the weights come from.

    Under torchrun all its processes train one run together: `torchrun --nproc-per-node 8 -m archlab train CONFIG …`.

    Parameters
    ----------
    config
        A preset's name, a YAML file, or a folder. A folder that holds weights must be OUT itself, where the training
        goes on; its config.yaml or config.json alone begins from random values elsewhere.
    overrides
        Fields to change, as in train.lr=3e-3. A larger train.tokens makes a run longer if its schedule is constant, or
        wsd.
    out
        The run's folder: config, metrics, checkpoints, summary. One made by `archlab import` begins with its weights.
    """
    with _first_speaks():
        return _train(config, overrides, out)


def _train(config: str, overrides: tuple[str, ...], out: Path) -> int:
    from archlab.cli.weights import refuse_unread_weights
    from archlab.training.callback import Printing
    from archlab.training.train import train

    with collected_notes() as notes:
        refuse_unread_weights(config, overrides, out)
        loaded, of_config = load_and_notes(config, overrides)
    notes += of_config
    if found := warnings(loaded):
        notes.append(in_one_line(found))
    plan = resolve_train(loaded)
    if plan.trained < plan.tokens:
        notes.append(f"{plan.tokens:,} tokens are {plan.trained:,} in whole batches of {plan.batch_tokens:,}")
    progress = Printing()
    for note in notes:
        progress.on_note(note)
    summary = train(loaded, out, progress)
    if summary.status == "diverged":
        print(f"diverged after {summary.steps} steps: {summary.why}; see {out}")
        return 1
    print(f"{summary.result} after {summary.tokens:,} tokens")
    print(f"{summary.tokens_per_second:,.0f} tok/s, MFU {summary.mfu:.0%}, {summary.dtype} on {summary.device}")
    print(out)
    return 0


@contextmanager
def _first_speaks() -> Iterator[None]:
    """Of several processes the first alone writes on the terminal, and the others only errors that it does not have."""
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        try:
            yield
        except UserError as error:
            _tell_torchrun(error)
            raise
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            yield
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            time.sleep(_PATIENCE)
            if isinstance(error, UserError):
                raise UserError(f"process {rank}: {error}") from error
            raise


def _tell_torchrun(error: UserError) -> None:
    """It ends with a traceback of its own and the message that it finds in a file."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        said = {"message": str(error), "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": said}), encoding="utf-8")
