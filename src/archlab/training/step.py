"""One optimizer update: forward pass, backward pass and weight update."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from archlab.config.schema import TrainConfig
from archlab.data.batch import Batch
from archlab.model.context import Collected, SequenceShard
from archlab.model.decoder import Decoder
from archlab.model.init import seed_of
from archlab.model.inputs import Inputs
from archlab.model.sharded import whole
from archlab.training.device import Device
from archlab.training.loss import Routers, backward_through_head
from archlab.training.optim import set_rate
from archlab.training.schedule import learning_rate
from archlab.training.shard import sum_over_replicas
from archlab.training.teacher import Teacher
from archlab.training.world import ALONE, World


@dataclass(frozen=True)
class StepResult:
    """Result of one update."""

    loss: float
    """Mean cross-entropy before the update, in nats per token, without auxiliary losses."""
    grad_norm: float
    """Global norm of the gradient before clipping."""
    lr: float
    updated: bool
    """Whether the weights were changed."""
    routers: Mapping[str, float] = field(default_factory=dict)
    """Router losses and expert loads, by name. Empty if the model has no mixture of experts."""
    teacher: Mapping[str, float] = field(default_factory=dict)
    """Divergence and distance from the teacher before the update, by name, without their weights. Those with the weight
    0 are left out. Empty without a teacher."""

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the gradient norm are finite: neither NaN nor infinite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def update(
    model: Decoder,
    optimizer: Optimizer,
    batch: Batch,
    train: TrainConfig,
    step: int,
    device: Device,
    world: World = ALONE,
    refuses: Callable[[float, float], bool] = lambda _loss, _grad_norm: False,
    teacher: Teacher | None = None,
    *,
    compiled: bool = False,
) -> StepResult:
    """Compute the clipped gradient over the batch, and make one update.

    The update is skipped if the loss or gradient is not finite, or if `refuses(loss, grad_norm)` returns True.

    Every process of `world` receives the whole batch but computes only its share of the micro-batches. With tensor
    parallelism, all n processes of a group compute the same micro-batches, so each process multiplies the router losses
    by 1/n. With context parallelism, each process of a group computes its own tokens of the same windows.

    `teacher` is the model of `train.teacher`. It reads each micro-batch first, while no activations are stored.

    `compiled` says whether the losses are computed by compiled code. The layers are compiled before
    (`compile_layers`).

    Dropout has its own seed for each train.seed, step and micro-batch. A resumed run therefore drops the same
    activations as an uninterrupted one, with any number of processes.
    """
    totals, routers = torch.zeros(3, device=device.type), Routers(model, world)
    windows_per_row = max(len(batch.tokens) // train.rows, 1)  # above 1 if windows are shorter than seq_len
    rows = train.micro_batch_tokens // train.seq_len * windows_per_row
    micro_batches = list(_micro_batches(batch, rows, world))
    for index, micro_batch, share in micro_batches:
        sum_over_replicas(model, world, is_last=index == micro_batches[-1][0])
        _seed(seed_of(f"{train.seed}/dropout/{step}" + (f"/{index}" if index else "")), device)
        collected = routers.collector()
        part = world.context_group.shard(micro_batch.tokens.shape[1]) if world.context_group else None
        forward_pass = partial(hidden_and_targets, batch=micro_batch, device=device)
        from_teacher = teacher.outputs(forward_pass) if teacher else None
        hidden_ND, targets_N = hidden_and_targets(model, micro_batch, device, collected, part)
        weight = share * world.averaged
        teacher_logits = from_teacher.logits(targets_N) if from_teacher else None
        gradient_ND, losses = backward_through_head(
            model, hidden_ND, targets_N, train, weight / world.context, device, teacher_logits, compiled=compiled
        )
        # The gradient of `carrier` with respect to the hidden states is gradient_ND; router losses are added to it.
        carrier = (hidden_ND * gradient_ND).sum()
        sum((router_loss * (weight / world.tensor) for router_loss in routers.minimized(collected)), carrier).backward()
        counted_BT = _on_device(micro_batch.counted, device)
        distance = torch.zeros_like(totals[0])
        if from_teacher:
            distance = from_teacher.backward_through_layers(model, counted_BT, weight)
        totals += torch.stack([*losses, distance]) * (share / world.context)
    grad_norm = whole(clip_grad_norm_(model.parameters(), train.grad_clip or math.inf))
    totals = world.context_group.sum(totals) if world.context_group else totals
    loss, *teacher_losses, norm = torch.cat((world.sum(totals), grad_norm[None])).tolist()  # waits for a GPU once
    numbers = loss, norm
    updated = all(map(math.isfinite, numbers)) and not refuses(*numbers)
    teacher_metrics = teacher.metrics(*teacher_losses) if teacher else {}
    result = StepResult(*numbers, learning_rate(train, step), updated, routers.metrics(), teacher_metrics)
    if updated:
        set_rate(optimizer, result.lr)
        optimizer.step()
        if train.lora is None:  # otherwise routers are frozen
            routers.correct()
    optimizer.zero_grad()
    return result


def _micro_batches(batch: Batch, rows: int, world: World) -> Iterator[tuple[int, Batch, float]]:
    """Yield this process's micro-batches: (index, micro-batch, share).

    `share` is the number of targets that count in the micro-batch, divided by their number in the whole batch.
    """
    parts = [slice(start, start + rows) for start in range(0, len(batch.tokens), rows)]
    own = len(parts) // world.readers
    for index in range(world.reader * own, (world.reader + 1) * own):
        micro_batch = batch.rows(parts[index])
        if micro_batch.counted is None or batch.counted is None:
            yield index, micro_batch, 1 / len(parts)
        else:
            yield index, micro_batch, int(micro_batch.counted.sum()) / int(batch.counted.sum())


def _seed(seed: int, device: Device) -> None:
    """Seed only the device in use. torch.manual_seed seeds all devices, which takes half a millisecond."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def hidden_and_targets(
    model: Decoder,
    batch: Batch,
    device: Device,
    collected: Collected | None = None,
    part: SequenceShard | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden states, [n, D], from which the targets that count, [n], are predicted.

    Layers add auxiliary losses and expert loads to `collected`. If `part` is given, use only this process's part of the
    tokens.
    """

    tokens_BT, targets_BT = _on_device(batch.tokens, device), _on_device(batch.targets, device)
    with device.autocast():
        hidden_BTD = model.hidden(
            tokens_BT,
            Inputs(
                documents=_on_device(batch.documents, device),
                lengths=_on_device(batch.lengths, device),
                prefix=_on_device(batch.prefix, device),
                source=_on_device(batch.source, device),
                source_lengths=_on_device(batch.source_lengths, device),
                source_documents=_on_device(batch.source_documents, device),
            ),
            collected,
            part,
        )
    targets_BT = targets_BT if part is None else part.own(targets_BT)
    hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
    if batch.counted is None:
        return hidden_ND, targets_N
    # The device cannot compute the indices without waiting for their number.
    index_n = _on_device(np.flatnonzero(batch.counted), device)
    return hidden_ND.index_select(0, index_n), targets_N.index_select(0, index_n)


@overload
def _on_device(array: np.ndarray, device: Device) -> Tensor: ...


@overload
def _on_device(array: np.ndarray | None, device: Device) -> Tensor | None: ...


def _on_device(array: np.ndarray | None, device: Device) -> Tensor | None:
    """Return a tensor on the device. Copying to a GPU does not wait for it, because the copied memory is pinned."""
    if array is None or device.type == "cpu":
        return None if array is None else torch.from_numpy(array)
    return torch.from_numpy(array).pin_memory().to(device.type, non_blocking=True)
