"""Where the time of a training step goes, operation by operation, against where its FLOPs and bytes are counted."""

import torch

from archlab.config.components.work import KINDS, Kind
from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.infer.clock import clocked
from archlab.infer.speed import seconds_of
from archlab.pricing.summary import training_pass
from archlab.pricing.work import by_kind, training_step
from archlab.training.rehearsal import rehearse, uncompiled


class Share(Base):
    """One kind of operation."""

    kind: Kind
    flops: float
    """Share of a step's FLOPs, counted."""
    n_bytes: float
    """Share of a step's bytes, counted."""
    time: float
    """Share of a step's time, measured; a softmax that a kernel does itself is within attention."""


class Profile(Base):
    """A training step on this machine, not compiled."""

    seconds: float
    """Of all operations; Python's time between them is not in it."""
    whole_seconds: float
    """Of a step without the clock, from its beginning to its end."""
    shares: list[Share]
    device: str
    dtype: str
    threads: int


def profile(config: Config, steps: int) -> Profile:
    """The fastest of so many steps with random text."""
    run = rehearse(uncompiled(config))
    whole = min(seconds_of(run.step, steps))
    found = clocked(run.model, run.step, steps, run.device.type)
    seconds = {kind: one.seconds for kind, one in found.items()}
    this = training_pass(config, run.device.format)
    work = {work.kind: work for work in by_kind(training_step(config.model, this))}
    flops, n_bytes = (sum(getattr(w, name) for w in work.values()) for name in ("flops", "n_bytes"))
    total = sum(seconds.values())
    shown: list[Kind] = [kind for kind in KINDS if kind in work or kind in seconds]
    shares = [
        Share(
            kind=kind,
            flops=work[kind].flops / flops if kind in work else 0.0,
            n_bytes=work[kind].n_bytes / n_bytes if kind in work else 0.0,
            time=seconds.get(kind, 0.0) / total,
        )
        for kind in sorted(shown, key=lambda kind: -seconds.get(kind, 0.0))
    ]
    return Profile(
        seconds=total,
        whole_seconds=whole,
        shares=shares,
        device=run.device.name,
        dtype=run.device.format,
        threads=torch.get_num_threads(),
    )
