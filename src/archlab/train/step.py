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
from archlab.train.loss import logits_and_targets, objective
from archlab.train.optim import learning_rate
from archlab.train.routers import Routers


@dataclass(frozen=True)
class StepResult:
    """What one update found."""

    loss: float
    """Plain cross-entropy before the update, mean in nats per token."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    routers: Mapping[str, float] = field(default_factory=dict)
    """Losses and loads of mixtures of experts, by name; empty without one."""

    @property
    def is_finite(self) -> bool:
        """False where the loss or the gradient is NaN or infinite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def update(
    model: Decoder,
    optimizer: Optimizer,
    windows: np.ndarray,
    train: ResolvedTrain,
    step: int,
    device: Device,
    separator: int | None = None,
) -> StepResult:
    """Gradient over the windows [n, seq_len + 1], clipped, and one update; no update where it is not finite.

    `separator` is the token that begins a document, where documents do not see each other; None where they do.

    Dropout has a seed of its own per (train.seed, step), so a resumed run drops what an uninterrupted one would drop.
    """
    torch.manual_seed(_dropout_seed(train.seed, step))
    windows_BT = torch.from_numpy(windows).to(device.kind)
    rows = train.micro_batch_tokens // (windows_BT.shape[1] - 1)
    micro_batches = windows_BT.split(rows)
    loss, routers = torch.zeros((), device=device.kind), Routers(model)
    for micro_BT in micro_batches:
        collected = routers.collector()
        logits_BTV, targets_BT = logits_and_targets(model, micro_BT, device, separator, collected)
        minimised, cross_entropy = objective(logits_BTV, targets_BT, train.z_loss)
        ((minimised + routers.minimised(collected)) / len(micro_batches)).backward()
        loss += cross_entropy.detach() / len(micro_batches)
    grad_norm = clip_grad_norm_(model.parameters(), train.grad_clip or math.inf)
    result = StepResult(loss.item(), grad_norm.item(), learning_rate(train, step), routers.metrics())
    if result.is_finite:
        for group in optimizer.param_groups:
            group["lr"] = result.lr
        optimizer.step()
        routers.correct()
    optimizer.zero_grad()
    return result


def _dropout_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/dropout/{step}".encode()).digest()[:8], "little") >> 1
