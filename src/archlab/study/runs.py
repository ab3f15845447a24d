"""A run of a study: its config, and its name, which is a hash of everything that decides its result."""

import ast
import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

import archlab
from archlab.config.identity import config_hash, resolved
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.train.compiling import is_compiled
from archlab.train.device import choose_device
from archlab.train.run_folder import NO_EFFECT_ON_RESULT, RunFolder
from archlab.train.summary import RunSummary

_DECIDING = ("config", "cost", "data", "model", "train")
"""The packages whose code decides a run's result."""


@cache
def _code() -> str:
    """A digest of the code that decides results, so that no run outlives a change of it."""
    digest = hashlib.sha256()
    for package in _DECIDING:
        for file in sorted(Path(archlab.__file__).parent.joinpath(package).glob("*.py")):
            digest.update(f"{file.name}\0{meaning(file.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()


def meaning(source: str) -> str:
    """The code without comments, docstrings and the way in which it is laid out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [statement for statement in body if not _is_text(statement)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(tree)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


@dataclass(frozen=True)
class Run:
    """One training of one arm with one seed."""

    label: str
    """What the user sees while it runs; not part of its name."""
    config: Config
    corpus: str
    """Fingerprint of the tokens."""
    threads: int

    @cached_property
    def name(self) -> str:
        """12 hex digits. Runs of the same name have the same result, so only one of them is run."""
        plain = resolved(self.config)
        device = choose_device(self.config.train)
        compiled = is_compiled(self.config, resolve_train(self.config), device)
        decides = {
            "model": plain["model"],
            "train": {
                key: value
                for key, value in plain["train"].items()
                if f"train.{key}" not in (*NO_EFFECT_ON_RESULT, "train.compile")
            },
            "compiled": compiled,
            "corpus": self.corpus,
            "threads": self.threads,
            "device": device.name,
            "dtype": str(device.dtype),
            "code": _code(),
            "torch": torch.__version__,
        }
        return config_hash(decides)

    def folder(self, study: Path) -> Path:
        """Its place in a study's folder."""
        return study / "runs" / self.name

    def ended(self, study: Path) -> "Ended | None":
        """What it left in a study's folder, or None while it has not ended; UserError for damage."""
        folder = RunFolder(self.folder(study))
        summary = folder.summary()
        return Ended(summary, folder.metrics(), folder.environment()) if summary else None


@dataclass(frozen=True)
class Ended:
    """What a run left that has ended."""

    summary: RunSummary
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]
