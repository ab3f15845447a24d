"""One run of a study: its name, which identifies what is trained, and its results."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from archlab.config.core.merge import Raw
from archlab.config.core.old_form import in_old_form
from archlab.config.identity import config_hash, resolved
from archlab.config.io import build_config, overlay
from archlab.config.objective import NextToken
from archlab.config.optimizer import AdamW, LrMultipliers
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.files import RUNS
from archlab.study.arm import NOT_TRAINED
from archlab.study.outcomes.final_weights import read_measured
from archlab.study.outcomes.schema import Outcome
from archlab.training.device import planned_device
from archlab.training.run_folder import RunFolder
from archlab.training.summary import DocumentScore, RunSummary
from archlab.training.trained_weights import open_weights

_NEW_FIELDS = (
    ("model.mup", None),
    ("model.encoder", None),
    ("model.embedding.segments", 0),
    ("model.embedding.widened", "tokens"),
    ("model.head.transform", None),
    ("model.block.attention_norm", True),
    ("model.block.mlp_output_norm", False),
    ("model.block.stream_scale", False),
    ("model.attention.v_norm", None),
    ("model.attention.keys_as_values", False),
    ("model.mlp.latent", None),
    ("model.mlp.own_norms", False),
    ("model.mlp.router.applied_to", "output"),
    ("model.mlp.router.norm", False),
    ("model.mlp.router.expert_scale", False),
    ("model.mlp.router.sparsemixer", None),
    ("model.position.scaling.long_attention_factor", None),
    ("train.optimizer", AdamW().model_dump(mode="json")),
    ("train.objective", NextToken().model_dump(mode="json")),
    ("train.objective.drawn", True),
    ("train.start", None),
    ("train.start_layers", None),
    ("train.teacher", None),
    ("train.lr_multipliers", LrMultipliers().model_dump(mode="json")),
    ("train.lora", None),
)
"""Fields that were added to archlab after older runs were named, with their defaults. At its default, such a field is
left out of a run's name. So older runs keep their names and are not trained again."""


def _values_in_name(section: Raw, path: str) -> Raw:
    return {
        key: _values_in_name(value, field) if isinstance(value, dict) else value
        for key, value in section.items()
        if (field := f"{path}.{key}") not in NOT_TRAINED and (field, value) not in _NEW_FIELDS
    }


@cache
def _digest_of(path: str) -> str:
    """Return the digest of trained weights. They are read once, because many runs of a study begin from them, or have
    them as a teacher."""
    return open_weights(path).digest


@dataclass(frozen=True)
class Run:
    """One training run of one arm with one seed."""

    label: str
    """Label shown to the user during the run. It is not part of the run's name."""
    config: Config
    corpus: str
    """Fingerprint of the corpus's tokens."""
    threads: int
    """Number of threads for training. It is not part of the run's name."""
    measures: tuple[Outcome, ...] = ()
    """Outcomes that are measured on the final weights. They are not part of the run's name."""
    phase: Literal["start", "tuning", "comparing"] = "comparing"
    """Phase of the study that the run belongs to. It is not part of the run's name."""
    start: "Run | None" = None
    """Run of the same study from whose last weights this run begins."""

    @cached_property
    def name(self) -> str:
        """12 hex digits that identify what is trained: the model, the training settings, the tokens and the dtype.

        A teacher is identified by its weights, not by its path. The machine and the version of the code are not part of
        the name. The run folder records them.
        """
        return self.name_in(planned_device(self.config.train).dtype)

    def name_in(self, dtype: torch.dtype) -> str:
        """Return the name of the run if it is trained in this dtype."""
        plain = in_old_form(resolved(self.config))
        values: Raw = {section: _values_in_name(plain[section], section) for section in ("model", "train")}
        named = self.config.train.start
        start = self.start.name_in(dtype) if self.start else named and _digest_of(named)
        if teacher := self.config.train.teacher:
            values["train"]["teacher"]["path"] = _digest_of(teacher.path) if teacher.path else start
        values |= {
            "dtype": str(dtype),
            "corpus": self.corpus,
            "fold": self.config.data.fold,
        }
        if excluded := self.config.data.excluded_folds:
            values["excluded_folds"] = list(excluded)
        if code := sources(self.config):
            values["plugins"] = code
        if start:
            values["train"]["start"] = start
        return config_hash(values)

    def trained(self, study: Path) -> Config:
        """Return the config with which the run is trained in a study's folder."""
        if self.start is None:
            return self.config
        return build_config(overlay(self.config.model_dump(), {"train.start": str(self.start.folder(study))}, Config))

    def folder(self, study: Path) -> Path:
        """Return the run's folder in a study's folder."""
        return study / RUNS / self.name

    def ended(self, study: Path) -> "Ended | None":
        """Return the run's results from a study's folder, or None if the run has not ended. Raise UserError if the
        files are damaged."""
        folder = RunFolder(self.folder(study))
        if (summary := folder.summary()) is None:
            return None
        measured = read_measured(self.measures, folder.path)
        return Ended(summary, folder.metrics(), folder.environment(), folder.documents(), measured)

    def is_over(self, ended: "Ended | None") -> bool:
        """Return whether the run has ended and all its outcomes are measured. A diverged run needs no outcomes."""
        if ended is None:
            return False
        return ended.summary.status == "diverged" or ended.measured.keys() >= set(self.measures)


@dataclass(frozen=True)
class Ended:
    """Results of a run that has finished or diverged."""

    summary: RunSummary
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]
    documents: list[DocumentScore]
    """Score of each held-out document after training."""
    measured: Mapping[Outcome, float | None]
    """Values of the outcomes measured on the final weights. A value is None if the outcome does not apply to the
    run."""
