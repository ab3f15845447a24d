"""One run of a study: its name, which says what it means, and what it left."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from archlab.config.core.merge import Raw
from archlab.config.core.old_form import in_old_form
from archlab.config.identity import config_hash, resolved
from archlab.config.optimizer import AdamW, LrMultipliers, NextToken
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.study.arm import NOT_TRAINED
from archlab.study.outcome_schema import Outcome
from archlab.study.outcomes.weights import kept
from archlab.training.device import planned_device
from archlab.training.evaluate import DocumentScore
from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary

_ADDED = (
    ("model.mup", None),
    ("train.optimizer", AdamW().model_dump(mode="json")),
    ("train.objective", NextToken().model_dump(mode="json")),
    ("train.lr_multipliers", LrMultipliers().model_dump(mode="json")),
)
"""Fields, at any depth, that older names do not contain, each with its default. At that value a field adds nothing to
a name, so that no study runs again because of a new field."""


def _deciding(section: Raw, path: str) -> Raw:
    """Return the values of a section that are part of a run's name."""
    return {
        key: _deciding(value, field) if isinstance(value, dict) else value
        for key, value in section.items()
        if (field := f"{path}.{key}") not in NOT_TRAINED and (field, value) not in _ADDED
    }


@dataclass(frozen=True)
class Run:
    """One training of one arm with one seed."""

    label: str
    """What the user sees while it runs; not part of its name."""
    config: Config
    corpus: str
    """Fingerprint of the tokens."""
    threads: int
    """With which it is trained; not part of its name."""
    measures: tuple[Outcome, ...] = ()
    """What is measured of its weights when it has ended; not part of its name."""
    phase: Literal["tuning", "comparing"] = "comparing"
    """Phase of the study that it belongs to; not part of its name."""

    @cached_property
    def name(self) -> str:
        """12 hex digits of the model, the training, the tokens and the number format: of what is trained, not of where
        or by which version of the code, which the run's folder records."""
        plain = in_old_form(resolved(self.config))
        decides = {section: _deciding(plain[section], section) for section in ("model", "train")}
        decides |= {
            "dtype": str(planned_device(self.config.train).dtype),
            "corpus": self.corpus,
            "fold": self.config.data.fold,
        }
        if code := sources(self.config):
            decides["plugins"] = code
        return config_hash(decides)

    def folder(self, study: Path) -> Path:
        """Its place in a study's folder."""
        return study / "runs" / self.name

    def ended(self, study: Path) -> "Ended | None":
        """What it left in a study's folder, or None while it has not ended; UserError for damage."""
        folder = RunFolder(self.folder(study))
        if (summary := folder.summary()) is None:
            return None
        measured = kept(self.measures, folder.path)
        return Ended(summary, folder.metrics(), folder.environment(), folder.documents(), measured)

    def is_over(self, ended: "Ended | None") -> bool:
        """Whether nothing is left to do: it has ended, and if it has weights they were measured."""
        if ended is None:
            return False
        return ended.summary.status == "diverged" or ended.measured.keys() >= set(self.measures)


@dataclass(frozen=True)
class Ended:
    """What a run left that has ended."""

    summary: RunSummary
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]
    documents: list[DocumentScore]
    """How well each held-out document is predicted at the end."""
    measured: Mapping[Outcome, float | None]
    """Of its weights; None for what it cannot have."""
