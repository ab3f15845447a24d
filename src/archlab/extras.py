"""Extras of archlab: optional packages, the features that need them, and the error if one is not installed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from archlab.errors import UserError

EXTRAS: Mapping[str, str] = {
    "datasets": "data from the hub (hf:NAME)",
    "gguf": "GGUF files",
    "hub": "models by hub id",
    "lm-eval": "archlab lm-eval",
    "mlflow": "train.log=[mlflow]",
    "parquet": "Parquet and Arrow files",
    "ray": "--executor ray",
    "slurm": "--executor slurm",
    "tensorboard": "train.log=[tensorboard]",
    "trackio": "train.log=[trackio]",
    "wandb": "train.log=[wandb]",
    "zstd": ".zst files",
}
"""Map each extra that a user of archlab may need to the feature that needs it."""


def install(*extras: str) -> str:
    """Return the command that installs extras."""
    return f"pip install 'archlab[{','.join(extras)}]'"


@contextmanager
def needs_extra(extra: str, subject: str) -> Iterator[None]:
    """Import packages of an extra within the block. Raise UserError, which names the extra, if an import fails.

    `subject` is the file, option or task that needs the extra. The message begins with it.
    """
    try:
        yield
    except ImportError as error:
        raise UserError(f"{subject} needs the extra `{extra}` ({error}); run: {install(extra)}") from None
