"""A run of a study: its config, and the name that everything deciding its result gives it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

import archlab
from archlab.config.identity import config_hash, resolved
from archlab.config.schema import Config
from archlab.train.device import choose_device
from archlab.train.run_folder import NO_EFFECT


@dataclass(frozen=True)
class Run:
    """One training of one arm with one seed."""

    label: str
    """What to call it while it runs; not part of its name."""
    config: Config
    corpus: str
    """Fingerprint of the tokens."""
    threads: int

    @cached_property
    def name(self) -> str:
        """12 hex digits: runs of the same name have the same result, so it is run once."""
        plain = resolved(self.config)
        device = choose_device(self.config.train)
        decides = {
            "model": plain["model"],
            "train": {key: value for key, value in plain["train"].items() if f"train.{key}" not in NO_EFFECT},
            "corpus": self.corpus,
            "threads": self.threads,
            "device": device.name,
            "dtype": str(device.dtype),
            "archlab": archlab.__version__,
            "torch": torch.__version__,
        }
        return config_hash(decides)

    def folder(self, study: Path) -> Path:
        """Where it lives in a study's folder."""
        return study / "runs" / self.name
