"""The command `archlab train`."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from archlab.cli.arguments import ConfigName, Override
from archlab.config.core.text import collected_notes
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import load_and_notes
from archlab.review.findings import in_one_line, warnings

_PATIENCE = 5.0
"""Time in seconds. After an error, a process other than the first waits this long before it raises the error.

Usually the first process has the same error, or the error occurred because another process had ended. Torchrun then
ends the waiting processes, so that only one error is printed.
"""


def run(config: ConfigName, /, *overrides: Override, out: Path) -> int:
    """Train a model. Repeat the command to resume. Exit code 1: the training diverged.

    Before the first step, the command prints where the weights come from.

    Under torchrun, all processes train one run together: `torchrun --nproc-per-node 8 -m archlab train CONFIG …`.

    Parameters
    ----------
    config
        A preset, a YAML file, a folder or a hub id. A new run begins from the weights of the folder or hub id
        (train.start); if the folder is OUT itself, its run continues. To begin from random weights, name the folder's
        config.yaml or config.json.
    overrides
        Fields to change, as in train.lr=3e-3. Fields of the model change trained weights, if the run begins from them
        (`archlab list transformations`). A larger train.tokens extends a finished run whose schedule is constant or
        wsd.
    out
        The run folder to write, with config, metrics, checkpoints and summary.
    """
    with _first_process_prints():
        return _train(config, overrides, out)


def _train(config: str, overrides: Sequence[str], out: Path) -> int:
    from archlab.cli.implied_start import with_start
    from archlab.training.callback import Printing
    from archlab.training.train import train
    from archlab.training.utilization import mfu_text

    with collected_notes() as notes:
        overrides = with_start(config, overrides, out)
        loaded, config_notes = load_and_notes(config, overrides)
    notes += config_notes
    if texts := warnings(loaded):
        notes.append(in_one_line(texts))
    plan = resolve_train(loaded)
    if plan.trained < plan.tokens:
        notes.append(
            f"train.tokens is {plan.tokens:,}; the run trains on {plan.trained:,}, "
            f"in whole batches of {plan.batch_tokens:,}"
        )
    progress = Printing()
    for note in notes:
        progress.on_note(note)
    summary = train(loaded, out, progress)
    if summary.status == "diverged":
        print(f"diverged after {summary.steps} steps: {summary.why}; see {out}")
        return 1
    print(f"{summary.result} after {summary.tokens:,} tokens")
    print(f"{summary.tokens_per_second:,.0f} tok/s, {mfu_text(summary.mfu)}, {summary.dtype} on {summary.device}")
    print(out)
    return 0


@contextmanager
def _first_process_prints() -> Iterator[None]:
    """Let only the first process print. Another process prints only an error, and only if the first process has not
    failed as well."""
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
    """Write the error message to the file from which torchrun reads it. Torchrun then prints it in its own report."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": str(error), "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")
