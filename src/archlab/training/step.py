"""One optimizer update: forward pass, backward pass and weight update."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from archlab.config.schema import TrainConfig
from archlab.data.training_data import Windows
from archlab.model.context import Collected, SequenceShard
from archlab.model.cut import whole
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.loss import Routers, backward_through_head
from archlab.training.optim import set_rate
from archlab.training.schedule import learning_rate
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

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the gradient norm are finite: neither NaN nor infinite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def update(
    model: Decoder,
    optimizer: Optimizer,
    windows: Windows,
    train: TrainConfig,
    step: int,
    device: Device,
    separator: int | None = None,
    world: World = ALONE,
    refuses: Callable[[float, float], bool] = lambda _loss, _grad_norm: False,
) -> StepResult:
    """Compute the clipped gradient over the windows, and make one update.

    The update is skipped if the loss or gradient is not finite, or if `refuses(loss, grad_norm)` returns True.
    `separator` is the token that begins a document, or None if attention is not masked between documents.

    Every process of `world` receives all windows but computes only its share of the micro-batches. With tensor
    parallelism, all n processes of a group compute the same micro-batches, so each process multiplies the router losses
    by 1/n. With context parallelism, each process of a group computes its own tokens of the same windows.

    Dropout has its own seed for each train.seed, step and micro-batch. A resumed run therefore drops the same
    activations as an uninterrupted one, with any number of processes.
    """
    loss, routers = torch.zeros((), device=device.type), Routers(model, world)
    for index, micro_BT, scored_BT, share in _micro_batches(windows, train.micro_batch_tokens, device, world):
        _seed(_dropout_seed(train.seed, step, index), device)
        collected = routers.collector()
        part = world.context_group.shard(micro_BT.shape[1] - 1) if world.context_group else None
        hidden_BTD, targets_BT = hidden_and_targets(model, micro_BT, device, separator, collected, part)
        hidden_ND, targets_N = select_scored(hidden_BTD, scored_BT), select_scored(targets_BT, scored_BT)
        weight = share * world.averaged
        gradient_ND, cross_entropy = backward_through_head(
            model, hidden_ND, targets_N, train, weight / world.context, device
        )
        # The gradient of `carrier` with respect to the hidden states is gradient_ND; router losses are added to it.
        carrier = (hidden_ND * gradient_ND).sum()
        sum((router_loss * (weight / world.tensor) for router_loss in routers.minimized(collected)), carrier).backward()
        loss += cross_entropy * (share / world.context)
    grad_norm = whole(clip_grad_norm_(model.parameters(), train.grad_clip or math.inf))
    loss = world.context_group.sum(loss) if world.context_group else loss
    numbers = world.sum(loss).item(), grad_norm.item()
    updated = all(map(math.isfinite, numbers)) and not refuses(*numbers)
    result = StepResult(*numbers, learning_rate(train, step), updated, routers.metrics())
    if updated:
        set_rate(optimizer, result.lr)
        optimizer.step()
        routers.correct()
    optimizer.zero_grad()
    return result


def _micro_batches(
    windows: Windows, micro_batch_tokens: int, device: Device, world: World
) -> Iterator[tuple[int, Tensor, Tensor | None, float]]:
    """Yield this process's micro-batches: (index, tokens, scored, share).

    `scored` marks the predicted tokens to train on; None means all. `share` is the number of these tokens in
    the micro-batch, divided by their number in the whole batch.
    """
    rows = micro_batch_tokens // (windows.tokens.shape[1] - 1)
    tokens = torch.from_numpy(windows.tokens).split(rows)
    all_scored = None if windows.scored is None else torch.from_numpy(windows.scored)
    scored = None if all_scored is None else all_scored.split(rows)
    own = len(tokens) // world.readers
    for index in range(world.reader * own, (world.reader + 1) * own):
        micro_BT = tokens[index].to(device.type)
        if scored is None or all_scored is None:
            yield index, micro_BT, None, 1 / len(tokens)
        else:
            share = int(scored[index].sum()) / int(all_scored.sum())
            yield index, micro_BT, scored[index].to(device.type), share


def select_scored(x_BT: Tensor, scored_BT: Tensor | None) -> Tensor:
    """Select the scored tokens: [B, T, ...] -> [N, ...]. If `scored_BT` is None, select all tokens."""
    return x_BT.flatten(0, 1) if scored_BT is None else x_BT[scored_BT]


def _seed(seed: int, device: Device) -> None:
    """Seed only the device in use. torch.manual_seed seeds all devices, which takes half a millisecond."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    stream = f"{seed}/dropout/{step}" + (f"/{micro_batch}" if micro_batch else "")
    return int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little") >> 1


def hidden_and_targets(
    model: Decoder,
    windows_BT: Tensor,
    device: Device,
    separator: int | None,
    collected: Collected | None = None,
    part: SequenceShard | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden states, [B, T - 1, D], and the targets, [B, T - 1], of windows [B, T].

    A target is the next token. `separator` is the token that begins a document, or None if attention is not masked
    between documents. Layers add auxiliary losses and expert loads to `collected`. If `part` is given, return only
    this process's part of the tokens.
    """
    inputs_BT, targets_BT = windows_BT[:, :-1], windows_BT[:, 1:]
    with device.autocast():
        hidden_BTD = model.hidden(
            inputs_BT, documents=document_ids(inputs_BT, separator), collected=collected, part=part
        )
    return hidden_BTD, targets_BT if part is None else part.own(targets_BT)


def document_ids(tokens_BT: Tensor, separator: int | None) -> Tensor | None:
    """Return the index of each token's document, counted from 0 in each window, [B, T].

    Return None if attention is not masked between documents. Document 0 is the rest of a document that began before the
    window. A separator belongs to the document that it begins, but it is predicted from the previous document.
    """
    return None if separator is None else (tokens_BT == separator).cumsum(-1)
