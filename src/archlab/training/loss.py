"""What training minimises, from the last hidden states: the logits of all tokens never stand at once.

Shapes: B batch, T tokens, N tokens of a piece, D d_model, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.core.registry import breach, implements, make
from archlab.config.optimizer import NextToken, Objective
from archlab.config.pieces import rows_at_once
from archlab.config.schema import TrainConfig
from archlab.model.context import Collected
from archlab.model.contract import Result, check_tensor
from archlab.model.decoder import Decoder
from archlab.model.moe import MoE
from archlab.model.router import Load, collected_loads
from archlab.training.device import Device
from archlab.training.world import World


def logits_in_pieces(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, device: Device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(hidden states [n, D], their logits [n, V], targets [n]) of as many tokens at a time as a piece may hold.

    The hidden states are detached; where gradients are kept, each piece of them is a leaf, so that its gradient is not
    one of all tokens.
    """
    rows = rows_at_once(model.config.vocab_size, device.type)
    for some_ND, some_N in zip(hidden_ND.detach().split(rows), targets_N.split(rows), strict=True):
        leaf_ND = some_ND.detach().requires_grad_(torch.is_grad_enabled())
        with device.autocast():
            logits_NV = model.head(leaf_ND, model.embedding.weight)
        yield leaf_ND, logits_NV, some_N


def backward_through_head(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, train: TrainConfig, share: float, device: Device
) -> tuple[Tensor, Tensor]:
    """Adds the gradient of `share` times the objective to the head's parameters.

    Returns (that of the hidden states, [N, D]; the plain cross-entropy, mean in nats per token).
    """
    gradients, cross_entropy = list[Tensor](), torch.zeros((), device=hidden_ND.device)
    for leaf_ND, logits_NV, some_N in logits_in_pieces(model, hidden_ND, targets_N, device):
        weight = len(some_N) / len(targets_N)
        minimised, found = objective(logits_NV, some_N, train.z_loss, train.objective)
        (minimised * (weight * share)).backward()
        assert leaf_ND.grad is not None
        gradients.append(leaf_ND.grad)
        cross_entropy += found.detach() * weight
    return torch.cat(gradients), cross_entropy


_NEXT_TOKEN = NextToken()


def objective(logits: Tensor, targets: Tensor, z_loss: float, config: Objective = _NEXT_TOKEN) -> tuple[Tensor, Tensor]:
    """Return (what is minimized, the plain cross-entropy) of logits [..., V].

    Both are means in nats per token, in at least float32. The first has z_loss * log^2 Z added, where Z is the softmax
    denominator (PaLM).
    """
    logits_NV = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    targets_N = targets.flatten()
    cross_entropy = F.cross_entropy(logits_NV, targets_N)
    minimized = make(config, logits_NV, targets_N, cross_entropy, check=_check_loss)
    if z_loss:
        minimized = minimized + z_loss * logits_NV.logsumexp(-1).square().mean()
    return minimized, cross_entropy


def _check_loss(
    kind: type[Objective], loss: Any, config: Objective, logits_NV: Tensor, targets_N: Tensor, cross_entropy: Tensor
) -> Tensor:
    check_tensor(kind, "its function", loss, Result((), None))
    if cross_entropy.requires_grad and not loss.requires_grad:
        raise breach(kind, "its function returned a loss without a gradient; compute it from the logits")
    return loss


@implements(NextToken)
def _next_token(config: NextToken, logits_NV: Tensor, targets_N: Tensor, cross_entropy: Tensor) -> Tensor:
    return cross_entropy


class RouterLosses(NamedTuple):
    """Of one pass, or of one update."""

    minimised: Tensor
    """The others with the config's factors."""
    balance: Tensor
    z: Tensor


class Routers:
    """All routers of a model during one update, and the loads and losses of its micro batches so far, those of all
    processes of the world together."""

    def __init__(self, model: Decoder, world: World) -> None:
        self._world = world
        components = (component for layer in model.layers for component in layer.children())
        self.mixtures = [component for component in components if isinstance(component, MoE)]
        self._passes: list[tuple[list[Load], RouterLosses]] = []

    def collector(self) -> Collected | None:
        """What a pass is given to collect loads in; None where nothing is to be collected."""
        return Collected() if self.mixtures else None

    def minimised(self, collected: Collected | None) -> list[Tensor]:
        """What a pass adds to the objective, empty without routers; remembered until the update."""
        if collected is None:
            return []
        loads = collected_loads(collected)
        if group := self._world.context_group:
            loads = summed(loads, group.sum)
        losses = router_losses(self.mixtures, loads)
        detached = [Load(*(x.detach() for x in load)) for load in loads]
        self._passes.append((detached, RouterLosses(*(x.detach() for x in losses))))
        return [losses.minimised]

    def correct(self) -> None:
        """After the update: move the corrections by the loads of all its micro batches together."""
        for mixture, load in zip(self.mixtures, self._loads, strict=True):
            mixture.router.correct(load.chosen_E)

    def metrics(self) -> dict[str, float]:
        """For the log; empty without a router.

        balance_loss, router_z_loss: as minimised, without the config's factors. largest_load: the part of the tokens
        that the busiest expert of any layer had. dead_experts: how many, in all layers, none of the tokens chose.
        """
        if not self.mixtures:
            return {}
        losses = [losses for _, losses in self._passes]
        n_passes = len(losses) * self._world.readers
        largest = torch.stack([(load.chosen_E / load.tokens).max() for load in self._loads]).max()
        dead = torch.stack([(load.chosen_E == 0).sum() for load in self._loads]).sum()
        return {
            "balance_loss": self._world.sum(torch.stack([x.balance for x in losses]).sum()).item() / n_passes,
            "router_z_loss": self._world.sum(torch.stack([x.z for x in losses]).sum()).item() / n_passes,
            "largest_load": largest.item(),
            "dead_experts": int(dead.item()),
        }

    @cached_property
    def _loads(self) -> list[Load]:
        """Of each router, over all passes of the update."""
        here = [added(list(loads)) for loads in zip(*(loads for loads, _ in self._passes), strict=True)]
        return summed(here, self._world.sum) if here else []


def router_losses(mixtures: Sequence[MoE], loads: Sequence[Load]) -> RouterLosses:
    """The mean over the layers of each one's losses; layers that pool their tokens have one balance loss in common."""
    pools: dict[object, list[int]] = {}
    for n, mixture in enumerate(mixtures):
        balance = mixture.config.balance
        pools.setdefault((mixture.config.experts, balance) if balance.pooled else n, []).append(n)
    minimised = balance = z = torch.zeros((), device=loads[0].tokens.device)
    for members in pools.values():
        loss = balance_loss(added([loads[n] for n in members])) * (len(members) / len(loads))
        balance = balance + loss
        minimised = minimised + loss * mixtures[members[0]].config.balance.loss
    for mixture, load in zip(mixtures, loads, strict=True):
        loss = load.log_z_squared / load.tokens / len(loads)
        z = z + loss
        minimised = minimised + loss * mixture.config.balance.router_z_loss
    return RouterLosses(minimised, balance, z)


def balance_loss(load: Load) -> Tensor:
    """E * sum over experts of (times chosen per token) * (mean score) (Fedus 2021)."""
    return len(load.chosen_E) * (load.chosen_E * load.scores_E).sum() / load.tokens.square()


def summed(loads: Sequence[Load], over: Callable[[Tensor], Tensor]) -> list[Load]:
    """Each over several processes, which send all of them as one tensor."""
    numbers = [x for load in loads for x in load]
    every = over(torch.cat([x.flatten() for x in numbers])).split([x.numel() for x in numbers])
    found = iter([x.view(like.shape) for x, like in zip(every, numbers, strict=True)])
    return [Load(*(next(found) for _ in load)) for load in loads]


def added(loads: Sequence[Load]) -> Load:
    """Of several passes or layers together."""
    return Load(*(torch.stack(values).sum(0) for values in zip(*loads, strict=True)))
