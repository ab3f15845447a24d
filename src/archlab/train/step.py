"""One optimiser update."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from archlab.config.training import ResolvedTrain
from archlab.model.decoder import Decoder
from archlab.train.device import Device
from archlab.train.documents import document_ids
from archlab.train.loss import objective
from archlab.train.routers import Routers
from archlab.train.schedule import learning_rate


@dataclass(frozen=True)
class StepResult:
    """What one update saw."""

    loss: float
    """Plain cross-entropy before the update, mean in nats per token."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    routers: Mapping[str, float] = field(default_factory=dict)
    """Losses and loads of mixtures of experts, by name; empty without one."""

    @property
    def diverged(self) -> bool:
        """Whether the loss or the gradient is not a number."""
        return not (math.isfinite(self.loss) and math.isfinite(self.grad_norm))


def update(
    model: Decoder,
    optimizer: Optimizer,
    batch: np.ndarray,
    train: ResolvedTrain,
    step: int,
    device: Device,
    begins: int | None = None,
) -> StepResult:
    """Gradient over the batch [windows, seq_len + 1], clipped, and one update; none where it diverged.

    `begins` is the token that begins a document which sees no other; None: they see each other.

    Dropout draws from a stream of its own per (seed, step), so a resumed run drops what an uninterrupted one would.
    """
    torch.manual_seed(_stream(train.seed, step))
    windows_BT = torch.from_numpy(batch).to(device.kind)
    rows = train.micro_batch_tokens // (windows_BT.shape[1] - 1)
    pieces = windows_BT.split(rows)
    loss, routers = torch.zeros((), device=device.kind), Routers(model)
    for piece_BT in pieces:
        collected = routers.collector()
        with device.autocast():
            documents = document_ids(piece_BT[:, :-1], begins)
            logits_BTV = model(piece_BT[:, :-1], documents=documents, collected=collected)
        minimised, cross_entropy = objective(logits_BTV, piece_BT[:, 1:], train.z_loss)
        ((minimised + routers.minimised(collected)) / len(pieces)).backward()
        loss += cross_entropy.detach() / len(pieces)
    grad_norm = clip_grad_norm_(model.parameters(), train.grad_clip or math.inf)
    result = StepResult(loss.item(), grad_norm.item(), learning_rate(train, step), routers.metrics())
    if not result.diverged:
        for group in optimizer.param_groups:
            group["lr"] = result.lr
        optimizer.step()
        routers.correct()
    optimizer.zero_grad()
    return result


def _stream(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/dropout/{step}".encode()).digest()[:8], "little") >> 1
