"""Files of a run folder, for reading. This module does not load torch."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tokenizers import Tokenizer

from archlab.data.tokenizer import end_of_text, load, own_tokenizer, read
from archlab.digests import RESTORE_OR_REMAKE, verify
from archlab.errors import UserError
from archlab.files import RUNS, STUDY, is_locked, read_bytes
from archlab.training.summary import PROBES, DocumentScore, RunSummary, checked

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
ENVIRONMENT = "env.json"
DOCUMENTS = "documents.json"
LOCK = ".lock"
_DOCUMENTS = TypeAdapter(list[DocumentScore])


def parts(lines: Sequence[dict[str, Any]], most: int) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield the lines of a log in parts of equal size, at most `most`."""
    n = min(most, len(lines))
    return (lines[i * len(lines) // n : (i + 1) * len(lines) // n] for i in range(n))


def probes_of(metrics: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the probes of a run, keyed by the number of training tokens at each probe."""
    tokens = {0: 0} | {line["step"]: line["tokens"] for line in metrics if "tokens" in line}
    return {tokens[line["step"]]: line[PROBES] for line in metrics if PROBES in line}


class RunFiles:
    """Files of one run, which another process may be writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_of_study(self) -> bool:
        runs = self.path.absolute().parent
        return runs.name == RUNS and (runs.parent / STUDY).is_file()

    def is_locked(self) -> bool:
        return is_locked(self.path / LOCK)

    def logged(self) -> bytes:
        """Return the content of metrics.jsonl so far."""
        metrics = self.path / METRICS
        if not metrics.exists():
            return b""
        if (summary := self.path / SUMMARY).exists():  # until then, the file grows
            verify(
                metrics,
                f"delete {summary} and run the command again; it restores both files from the last checkpoint",
            )
        return read_bytes(metrics, limit=sys.maxsize)  # the file grows with the run

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics so far, without an incomplete last line.

        Lines with `held_out_loss` are evaluations.
        """
        lines = self.logged().splitlines(keepends=True)
        try:
            return [checked(json.loads(line)) for line in lines if line.endswith(b"\n")]
        except (ValueError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{self.path / METRICS}: damaged: {error}; run the command again to continue from the last checkpoint"
            ) from None

    def documents(self) -> list[DocumentScore]:
        """Return the document scores from the end of training; empty if there are none."""
        path = self.path / DOCUMENTS
        if not path.exists():
            return []
        verify(path)
        return _DOCUMENTS.validate_json(path.read_bytes())

    def summary(self) -> RunSummary | None:
        """Return the summary of a finished run, or None if the run has not finished."""
        path, remedy = self.path / SUMMARY, "delete the file and run the command again"
        if not path.exists():
            return None
        verify(path, remedy)
        try:
            return RunSummary.model_validate_json(path.read_bytes()).in_folder(self.path)
        except ValueError:
            raise UserError(f"{path}: damaged; {remedy}") from None

    def tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer, set to the token that preceded each document in training.

        Before training, this is the token of the imported model. Old versions always used the EOS token.
        """
        file, env = own_tokenizer(self.path), self.environment()
        if env and "document_token" not in env:
            return load(file, end_of_text(read(file)[0]))
        return load(file, env.get("document_token"))

    def environment(self) -> dict[str, Any]:
        """Return the content of env.json: everything that affects a run's numbers, except the config.

        The result is empty before the run begins.
        """
        path = self.path / ENVIRONMENT
        if not path.exists():
            return {}
        verify(path)
        try:
            environment = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            environment = None
        if not isinstance(environment, dict):
            raise UserError(f"{path}: damaged; {RESTORE_OR_REMAKE}")
        return environment
