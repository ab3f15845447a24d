"""How a run ended: finished with a score, or diverged."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import model_validator

from archlab.config.core.base import Base, Natural, NonNegative, Positive
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.spikes import SPIKE

NOT_FINITE = "a loss or gradient is NaN or infinite"

_UNTRAINED_MARGIN = 1.1
"""An untrained model costs more than a uniform guess, because its logits scatter. A run of a few steps that ends this
little above a guess has only begun."""

_NO_PROGRESS_MARGIN = 1.01
"""A run that learnt nothing ends within a hair of where it began, above it or below."""


class RunSummary(Base):
    """How a run ended."""

    status: Literal["finished", "diverged"]
    """diverged: a loss or gradient was not finite, or the run ended too badly (see `divergence`)."""
    why: str | None = None
    """Why it diverged, for people; null when finished."""
    steps: Natural
    """Updates made."""
    tokens: Natural
    """Training tokens read, those of skipped batches too."""
    bits_per_byte: NonNegative | None
    """Of the held-out text at the end; null when diverged, and for a task."""
    accuracy: NonNegative | None = None
    """Share of a task's answers that are right at the end; null when diverged, and for text."""
    loss: NonNegative | None
    """Held-out cross-entropy in nats per token at the end; null when diverged."""
    train_loss: NonNegative | None
    """Mean cross-entropy over the last tenth of the steps."""
    tokens_per_second: Positive | None
    """Median over the steps, evaluation and checkpoints left out."""
    mfu: NonNegative | None
    """Model FLOPs (attention over visible pairs) per second over the peak measured on this machine."""
    spikes: Natural = 0
    """Steps whose loss or gradient was far above those before (train.spikes)."""
    parameters: Natural
    device: str
    dtype: str

    @property
    def score(self) -> float | None:
        """Bits per byte, or the share of right answers; None when diverged."""
        return self.accuracy if self.bits_per_byte is None else self.bits_per_byte

    @property
    def result(self) -> str:
        """In words; of a finished run."""
        if self.bits_per_byte is None:
            return f"{self.accuracy:.2%} of the task's answers right"
        return f"{self.bits_per_byte:.4f} bits per byte of held-out text"

    @model_validator(mode="after")
    def _scored(self) -> Self:
        if self.status == "finished" and (self.loss is None or (self.bits_per_byte is None) == (self.accuracy is None)):
            raise ValueError("finished, but without a score")
        return self


def summarise(
    metrics: Sequence[dict[str, Any]],
    why: str | None,
    model: Decoder,
    device: Device,
    mfu_per_speed: float,
    *,
    is_imported: bool,
) -> RunSummary:
    """Computed from the metrics, so that it does not matter how often the run was interrupted.

    `why` says that a loss or gradient was not finite; None where all were. `is_imported`: it began with published
    weights.
    """
    whole = [m for m in metrics if "diverged" not in m]
    steps, updates, evaluations = ([m for m in whole if key in m] for key in ("grad_norm", "lr", "held_out_loss"))
    if why is None and evaluations:
        first, last = (evaluations[at]["held_out_loss"] for at in (0, -1))
        why = divergence(None if is_imported else first, last, model.config.vocab_size)
    end = evaluations[-1] if why is None and evaluations else {}
    speed = statistics.median(m["tokens_per_second"] for m in updates) if updates else None
    last_tenth = updates[-max(1, len(updates) // 10) :]
    return RunSummary(
        status="diverged" if why else "finished",
        why=why,
        steps=len(updates),
        tokens=steps[-1]["tokens"] if steps else 0,
        bits_per_byte=end.get("bits_per_byte"),
        accuracy=end.get("accuracy"),
        loss=end.get("held_out_loss"),
        train_loss=statistics.fmean(m["loss"] for m in last_tenth) if last_tenth else None,
        tokens_per_second=speed,
        mfu=speed * mfu_per_speed if speed else None,
        spikes=sum(SPIKE in m for m in metrics),
        parameters=sum(p.numel() for p in model.parameters()),
        device=device.name,
        dtype=device.format,
    )


def divergence(first: float | None, last: float, vocab_size: int) -> str | None:
    """Why a run whose losses all stayed finite has diverged nonetheless; None where it has not.

    `first` and `last` are its held-out losses in nats per token, before its first update and after its last one.
    Training that leaves a model more than a tenth worse than a uniform guess, whose loss is ln(vocab_size), or worse
    than it was before any training, has ruined it; how far beyond the bound it happens to end says nothing about the
    architecture. The first evaluation is the one before the first update, so that the answer does not depend on
    `eval_every`. It is None where the run began with published weights: to be worse than those is a bad result, but a
    result.
    """
    uniform = math.log(vocab_size)
    if last > _UNTRAINED_MARGIN * uniform:
        than = f"than a uniform guess ({last:,.2f} against {uniform:.2f} nats per token)"
        return f"it ended more than a tenth worse {than}"
    if first is not None and last > _NO_PROGRESS_MARGIN * first:
        return f"it ended worse than before its first step ({last:,.2f} against {first:,.2f} nats per token)"
    return None
