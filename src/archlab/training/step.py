"""One optimiser update: the pass, its gradient, its learning rate."""

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
    """What one update found."""

    loss: float
    """Plain cross-entropy before the update, mean in nats per token."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    updated: bool
    """Whether the weights were changed."""
    routers: Mapping[str, float] = field(default_factory=dict)
    """Losses and loads of mixtures of experts, by name; empty without one."""

    @property
    def is_finite(self) -> bool:
        """False where the loss or the gradient is NaN or infinite."""
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
    """Gradient over the windows, clipped, and one update; none where it is not finite, or where `refuses`, which is
    given loss and gradient norm, says so.

    `separator` is the token that begins a document, where documents do not see each other; None where they do.
    `world`: each process is given all windows, and passes its part of their micro batches through the model; those that
    share the work of layers pass the same ones, and each adds its part of what routers ask for; those that divide
    windows each pass their tokens of the same ones.

    Dropout has a seed of its own per train.seed, step and micro batch, so a resumed run drops what an uninterrupted one
    would drop, with any number of processes.
    """
    loss, routers = torch.zeros((), device=device.type), Routers(model, world)
    for index, micro_BT, scored_BT, share in _micro_batches(windows, train.micro_batch_tokens, device, world):
        _seed(_dropout_seed(train.seed, step, index), device)
        collected = routers.collector()
        part = world.context_group.shard(micro_BT.shape[1] - 1) if world.context_group else None
        hidden_BTD, targets_BT = hidden_and_targets(model, micro_BT, device, separator, collected, part)
        hidden_ND, targets_N = chosen(hidden_BTD, scored_BT), chosen(targets_BT, scored_BT)
        weight = share * world.averaged
        gradient_ND, cross_entropy = backward_through_head(
            model, hidden_ND, targets_N, train, weight / world.context, device
        )
        # A number whose gradient with respect to the hidden states is the one found, beside what the routers ask for.
        carrier = (hidden_ND * gradient_ND).sum()
        sum((asked * (weight / world.tensor) for asked in routers.minimised(collected)), carrier).backward()
        loss += cross_entropy * (share / world.context)
    grad_norm = whole(clip_grad_norm_(model.parameters(), train.grad_clip or math.inf))
    loss = world.context_group.sum(loss) if world.context_group else loss
    found = world.sum(loss).item(), grad_norm.item()
    updated = all(map(math.isfinite, found)) and not refuses(*found)
    result = StepResult(*found, learning_rate(train, step), updated, routers.metrics())
    if updated:
        set_rate(optimizer, result.lr)
        optimizer.step()
        routers.correct()
    optimizer.zero_grad()
    return result


def _micro_batches(
    windows: Windows, micro_batch_tokens: int, device: Device, world: World
) -> Iterator[tuple[int, Tensor, Tensor | None, float]]:
    """(index, tokens, which predicted ones are trained on, their share of all that are) of this process's passes of an
    update."""
    rows = micro_batch_tokens // (windows.tokens.shape[1] - 1)
    tokens = torch.from_numpy(windows.tokens).split(rows)
    every = None if windows.scored is None else torch.from_numpy(windows.scored)
    scored = None if every is None else every.split(rows)
    own = len(tokens) // world.readers
    for index in range(world.reader * own, (world.reader + 1) * own):
        micro_BT = tokens[index].to(device.type)
        if scored is None or every is None:
            yield index, micro_BT, None, 1 / len(tokens)
        else:
            share = int(scored[index].sum()) / int(every.sum())
            yield index, micro_BT, scored[index].to(device.type), share


def chosen(x_BT: Tensor, scored_BT: Tensor | None) -> Tensor:
    """[B, T, ...] -> [N, ...]: of the tokens that are scored; None: of all."""
    return x_BT.flatten(0, 1) if scored_BT is None else x_BT[scored_BT]


def _seed(seed: int, device: Device) -> None:
    """As torch.manual_seed, but of the device in use alone: for all there might be it takes half a millisecond."""
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
    """(hidden states [B, T - 1, D], targets [B, T - 1]) of windows [B, T]: each token is predicted by those before it.

    `separator` is the token that begins a document, where documents do not see each other; None where they do.
    `collected`: layers put auxiliary losses and loads here. `part`: of its tokens only.
    """
    inputs_BT, targets_BT = windows_BT[:, :-1], windows_BT[:, 1:]
    with device.autocast():
        hidden_BTD = model.hidden(
            inputs_BT, documents=document_ids(inputs_BT, separator), collected=collected, part=part
        )
    return hidden_BTD, targets_BT if part is None else part.own(targets_BT)


def document_ids(tokens_BT: Tensor, separator: int | None) -> Tensor | None:
    """Number of each token's document in its window, [B, T]; None where documents see each other.

    0 is the rest of a document that began before the window. The separator belongs to the document that it begins, so
    it is predicted from the document before it.
    """
    return None if separator is None else (tokens_BT == separator).cumsum(-1)
