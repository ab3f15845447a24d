"""Summary of a run that has ended: finished with a score, or diverged."""

import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import model_validator

from archlab.config.core.base import Base, Natural, NonNegative, Positive
from archlab.data.batch import ScoreName
from archlab.displayed import Charted
from archlab.training.spikes import SPIKE

if TYPE_CHECKING:  # these modules load torch
    from archlab.model.decoder import Decoder
    from archlab.training.device import Device
    from archlab.training.utilization import Utilization

PROBES = "probes"
"""Key of a probe's values in a line of metrics."""
NOT_FINITE = "a loss or gradient is NaN or infinite"

_UNTRAINED_MARGIN = 1.1
"""Factor by which the final loss may exceed that of a uniform guess before the run counts as diverged.

An untrained model is worse than a uniform guess, because its logits vary. A run of a few steps may end slightly worse
than a uniform guess.
"""

_NO_PROGRESS_MARGIN = 1.01
"""Factor by which the final loss may exceed the first loss before the run counts as diverged.

A run that learned nothing ends very near its first loss, above or below it.
"""


class DocumentScore(Base):
    """Score of one document."""

    begins: str
    """First words of the document."""
    bits: float
    """Total bits of the document's tokens."""
    bytes: int
    """Length of the document's text in bytes."""


class RunSummary(Charted, Base):
    """Summary of a run that has ended."""

    status: Literal["finished", "diverged"]
    """Whether the run finished or diverged.

    A run has diverged if a loss or gradient was not finite, or if the final loss is too high (see `divergence`).
    """
    why: str | None = None
    """Reason why the run diverged; null if it finished."""
    steps: Natural
    """Number of updates made."""
    tokens: Natural
    """Number of training tokens read, including those of skipped batches."""
    bits_per_byte: NonNegative | None
    """Bits per byte of held-out text at the end; null if the run diverged, and for a task."""
    accuracy: NonNegative | None = None
    """Fraction of a task's answers that are correct at the end; null if the run diverged, and for text."""
    denoising_loss: NonNegative | None = None
    """Cross-entropy in nats per hidden token at the end; null if the run diverged, and for objectives that hide no
    tokens."""
    denoising_accuracy: NonNegative | None = None
    """Fraction of the hidden tokens that are predicted at the end; null as `denoising_loss`."""
    loss: NonNegative | None
    """Held-out cross-entropy in nats per token at the end; null if the run diverged."""
    train_loss: NonNegative | None
    """Mean cross-entropy in nats per token over the last tenth of the steps."""
    tokens_per_second: Positive | None
    """Median training speed over the steps, without evaluation and checkpoints."""
    mfu: NonNegative | None
    """Model FLOPs utilization: model FLOPs per second, divided by the peak measured on this machine.

    null if training was faster than every measurement of the peak. Other work has then slowed down the measurements.

    The FLOPs of attention count only visible pairs of tokens. Those of a teacher are included.
    """
    spikes: Natural = 0
    """Number of steps whose loss or gradient norm was far above those of previous steps (train.spikes)."""
    parameters: Natural
    """Number of parameters of the model. The matrices that LoRA adds do not count, because they can be merged."""
    device: str
    dtype: str

    @cached_property
    def folder(self) -> Path | None:
        """Folder of the run, whose curves the summary shows. None if the summary does not come from a folder.

        It is not a field: copies of a run are equal, and summary.json does not contain it.
        """
        return None

    def in_folder(self, folder: Path) -> Self:
        """Return the summary of the run in this folder."""
        summary = self.model_copy()
        object.__setattr__(summary, "folder", folder)
        return summary

    @property
    def score(self) -> float | None:
        """Bits per byte, loss per hidden token, or fraction of correct answers; None if the run diverged."""
        scores = (self.bits_per_byte, self.denoising_loss, self.accuracy)
        return next((score for score in scores if score is not None), None)

    @property
    def result(self) -> str:
        if self.denoising_loss is not None:
            return f"{self.denoising_loss:.4f} nats per hidden token, {self.denoising_accuracy:.2%} of them correct"
        if self.bits_per_byte is None:
            return f"{self.accuracy:.2%} of the task's answers are correct"
        return f"{self.bits_per_byte:.4f} bits per byte of held-out text"

    @model_validator(mode="after")
    def _scored(self) -> Self:
        scores = (self.bits_per_byte, self.accuracy, self.denoising_loss)
        if self.status == "finished" and (self.loss is None or sum(score is not None for score in scores) != 1):
            raise ValueError(
                "the run has finished, so it must have a loss, and one of bits_per_byte, accuracy and denoising_loss"
            )
        return self


def summarize(
    metrics: Sequence[dict[str, Any]],
    why: str | None,
    model: "Decoder",
    device: "Device",
    utilization: "Utilization",
    *,
    is_imported: bool,
) -> RunSummary:
    """Summarize a run from its metrics alone, so that interruptions do not matter.

    `why` is the reason if a loss or gradient was not finite, otherwise None. `is_imported` is true if the run began
    with published weights.
    """
    from archlab.model.lora import is_added  # loads torch, which readers of a summary do not need

    whole = [m for m in metrics if "diverged" not in m]
    steps, updates, evaluations = ([m for m in whole if key in m] for key in ("grad_norm", "lr", "held_out_loss"))
    if why is None and evaluations:
        first, last = (evaluations[at]["held_out_loss"] for at in (0, -1))
        why = divergence(first, last, model.config.vocab_size, is_imported=is_imported)
    end = evaluations[-1] if why is None and evaluations else {}
    speed = statistics.median(m["tokens_per_second"] for m in updates) if updates else None
    tokens = steps[-1]["tokens"] if steps else 0
    last_tenth = updates[-max(1, len(updates) // 10) :]
    return RunSummary(
        status="diverged" if why else "finished",
        why=why,
        steps=len(updates),
        tokens=tokens,
        bits_per_byte=end.get("bits_per_byte"),
        accuracy=end.get("accuracy"),
        denoising_loss=end.get("denoising_loss"),
        denoising_accuracy=end.get("denoising_accuracy"),
        loss=end.get("held_out_loss"),
        train_loss=statistics.fmean(m["loss"] for m in last_tenth) if last_tenth else None,
        tokens_per_second=speed,
        mfu=utilization.of_run(tokens, speed) if speed else None,
        spikes=sum(SPIKE in m for m in metrics),
        parameters=sum(p.numel() for name, p in model.named_parameters() if not is_added(name)),
        device=device.name,
        dtype=device.format,
    )


def divergence(first: float, last: float, vocab_size: int, *, is_imported: bool) -> str | None:
    """Return why a run with finite losses has diverged, or None if it has not.

    `first` and `last` are the run's held-out losses in nats per token, before the first update and after the last one.
    A run has diverged if the model ends more than a tenth worse than a uniform guess, whose loss is ln(vocab_size), or
    worse than before training. A diverged run has no score, because the size of its loss says nothing about the
    architecture.

    The first evaluation is the one before the first update, so that the result does not depend on `eval_every`. If the
    run began with trained weights (`is_imported`), a result worse than theirs is still a result. A change of the
    weights may have made them worse than a uniform guess, so a run that improves them has not diverged.
    """
    uniform = math.log(vocab_size)
    if last > _UNTRAINED_MARGIN * (max(uniform, first) if is_imported else uniform):
        than = f"than a uniform guess ({last:,.2f} against {uniform:.2f} nats per token)"
        return f"it ended more than a tenth worse {than}"
    if not is_imported and last > _NO_PROGRESS_MARGIN * first:
        return f"it ended worse than before its first step ({last:,.2f} against {first:,.2f} nats per token)"
    return None


_REQUIRED_WITH = {
    "lr": ("tokens", "loss", "grad_norm", "tokens_per_second"),
    **dict.fromkeys(get_args(ScoreName), ("tokens", "held_out_loss")),
}


def checked(line: Any) -> dict[str, Any]:
    """Return a line of metrics. Raise ValueError if it is not as a run writes it."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise ValueError("a line is not a JSON object with the step as an integer")
    complete = all(other in line for key, others in _REQUIRED_WITH.items() if key in line for other in others)
    measured = "diverged" in line or all(_is_metric(line[name]) for name in line if name != PROBES)
    measured = measured and isinstance(line.get(PROBES, {}), dict)
    if not (complete and measured and line.get("tokens_per_second") != 0):
        raise ValueError(f"the line of step {line['step']} has missing or invalid values")
    return line


def _is_metric(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
