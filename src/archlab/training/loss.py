"""Training objective, computed from the last hidden states in chunks to limit the memory for logits.

Shapes: B batch, T tokens, N tokens of a chunk, D d_model, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.core.contract import breach
from archlab.config.core.registry import implements, make
from archlab.config.objective import Masked, Mixture, NextToken, Objective, Prefix, Seq2Seq, SpanCorruption
from archlab.config.pieces import rows_at_once
from archlab.config.schema import TrainConfig
from archlab.model.context import Collected
from archlab.model.contract import Result, check_tensor
from archlab.model.decoder import Decoder
from archlab.model.graphs import compiled_once
from archlab.model.moe import MoE
from archlab.model.router import Load, collected_loads
from archlab.training.device import Device
from archlab.training.world import World


def logits_in_pieces(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, device: Device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield one chunk of tokens at a time: (hidden states [n, D], logits [n, V], targets [n]).

    The hidden states are detached. If gradients are enabled, each chunk is a leaf tensor, so that its gradient covers
    only its own tokens.
    """
    rows = rows_at_once(model.config.vocab_size, device.type)
    with torch.autocast(device.type, enabled=False):  # the block in which torch keeps the head's converted matrix
        for piece_ND, piece_N in zip(hidden_ND.detach().split(rows), targets_N.split(rows), strict=True):
            leaf_ND = piece_ND.detach().requires_grad_(torch.is_grad_enabled())
            with device.autocast(keeps_weights=True):
                logits_NV = model.head(leaf_ND, model.embedding.weight)
            yield leaf_ND, logits_NV, piece_N


class HeadLosses(NamedTuple):
    """Losses of the logits, as means in nats per token that counts."""

    cross_entropy: Tensor
    divergence: Tensor
    """Divergence from a teacher at its temperature, without factors; 0 without a teacher."""


def backward_through_head(
    model: Decoder,
    hidden_ND: Tensor,
    targets_N: Tensor,
    train: TrainConfig,
    share: float,
    device: Device,
    teacher_logits: Iterator[Tensor] | None = None,
    *,
    compiled: bool = False,
) -> tuple[Tensor, HeadLosses]:
    """Backpropagate `share` times the objective through the head, which accumulates gradients in its parameters.

    `teacher_logits` yields a teacher's logits of each chunk. The divergence from them is then added to the objective,
    with the weights of `train.teacher`. Return the gradient of the hidden states, [N, D], and the losses.

    If `compiled` is true, the losses of a chunk are computed by compiled code, which reads and writes the logits fewer
    times.
    """
    losses_of = compiled_once(objective) if compiled else objective
    divergence_of = compiled_once(kl_divergence) if compiled else kl_divergence
    gradients, teacher = list[Tensor](), train.teacher
    cross_entropy, divergence = (torch.zeros((), device=hidden_ND.device) for _ in range(2))
    for leaf_ND, logits_NV, piece_N in logits_in_pieces(model, hidden_ND, targets_N, device):
        weight = len(piece_N) / len(targets_N)
        of_objective = 1.0 if teacher is None else teacher.objective
        minimized, plain = losses_of(logits_NV, piece_N, train.z_loss, train.objective, of_objective)
        if teacher is not None and teacher_logits is not None:
            from_teacher = divergence_of(next(teacher_logits), logits_NV, teacher.temperature)
            minimized = minimized + teacher.logits * teacher.temperature**2 * from_teacher
            divergence += from_teacher.detach() * weight
        (minimized * (weight * share)).backward()
        assert leaf_ND.grad is not None
        gradients.append(leaf_ND.grad)
        cross_entropy += plain.detach() * weight
    return torch.cat(gradients), HeadLosses(cross_entropy, divergence)


def kl_divergence(teacher_NV: Tensor, student_NV: Tensor, temperature: float) -> Tensor:
    """Return KL(p || q) in nats per token and in at least float32, from logits [N, V].

    The logits are first divided by the temperature. They then give the teacher's distribution p and the student's q
    (Hinton 2015, arXiv 1503.02531).
    """
    log_q_NV, log_p_NV = (
        (logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)) / temperature).log_softmax(-1)
        for logits_NV in (student_NV, teacher_NV)
    )
    return F.kl_div(log_q_NV, log_p_NV, reduction="batchmean", log_target=True)


_NEXT_TOKEN = NextToken()


def objective(
    logits: Tensor, targets: Tensor, z_loss: float, config: Objective = _NEXT_TOKEN, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the loss to minimize and the plain cross-entropy of logits [..., V].

    Both are means in nats per token, in at least float32. The loss to minimize is `weight` times that of the objective,
    plus z_loss * log^2 Z, where Z is the softmax denominator (PaLM).
    """
    logits_NV = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    targets_N = targets.flatten()
    cross_entropy = F.cross_entropy(logits_NV, targets_N)
    minimized = weight * make(config, logits_NV, targets_N, cross_entropy, check=_check_loss)
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


@implements(NextToken, Masked, Prefix, SpanCorruption, Seq2Seq, Mixture)
def _cross_entropy(config: Objective, logits_NV: Tensor, targets_N: Tensor, cross_entropy: Tensor) -> Tensor:
    return cross_entropy


class RouterLosses(NamedTuple):
    """Router losses of one forward pass or one update."""

    minimized: Tensor
    """Sum of the balance loss and the z-loss, each times its factor in the config."""
    balance: Tensor
    z: Tensor


class Routers:
    """Router loads and losses of a model during one update.

    They cover the update's micro-batches so far, summed over all processes.
    """

    def __init__(self, model: Decoder, world: World) -> None:
        self._world = world
        components = (component for layer in model.all_layers for component in layer.children())
        self.mixtures = [component for component in components if isinstance(component, MoE)]
        self._passes: list[tuple[list[Load], RouterLosses]] = []

    def collector(self) -> Collected | None:
        """Return an empty collector for the loads of one forward pass; None if the model has no routers."""
        return Collected() if self.mixtures else None

    def minimized(self, collected: Collected | None) -> list[Tensor]:
        """Record the loads and losses of a forward pass. Return the losses to add to the objective.

        The result is empty if the model has no routers.
        """
        if collected is None:
            return []
        loads = collected_loads(collected)
        if group := self._world.context_group:
            loads = sum_over_processes(loads, group.sum)
        losses = router_losses(self.mixtures, loads)
        detached = [Load(*(x.detach() for x in load)) for load in loads]
        self._passes.append((detached, RouterLosses(*(x.detach() for x in losses))))
        return [losses.minimized]

    def correct(self) -> None:
        """Adjust the biases of each router according to the loads of all micro-batches. Called after the update."""
        for mixture, load in zip(self.mixtures, self._loads, strict=True):
            mixture.router.correct(load.chosen_E)

    def metrics(self) -> dict[str, float]:
        """Return metrics for the log; empty if the model has no routers.

        `balance_loss` and `router_z_loss` are not multiplied by their factors in the config. `largest_load` is the
        fraction of tokens that the busiest expert of any layer receives. `dead_experts` is the number of experts, over
        all layers, that received no tokens.
        """
        if not self.mixtures:
            return {}
        losses = [losses for _, losses in self._passes]
        sums = torch.stack([torch.stack([getattr(x, name) for x in losses]).sum() for name in ("balance", "z")])
        n_passes = len(losses) * self._world.readers
        largest = torch.stack([(load.chosen_E / load.tokens).max() for load in self._loads]).max()
        dead = torch.stack([(load.chosen_E == 0).sum() for load in self._loads]).sum()
        numbers = torch.cat((self._world.sum(sums), torch.stack((largest, dead.to(largest.dtype)))))
        balance, z, largest_load, dead_experts = numbers.tolist()  # waits for a GPU once
        return {
            "balance_loss": balance / n_passes,
            "router_z_loss": z / n_passes,
            "largest_load": largest_load,
            "dead_experts": int(dead_experts),
        }

    @cached_property
    def _loads(self) -> list[Load]:
        here = [add_loads(list(loads)) for loads in zip(*(loads for loads, _ in self._passes), strict=True)]
        return sum_over_processes(here, self._world.sum) if here else []


def router_losses(mixtures: Sequence[MoE], loads: Sequence[Load]) -> RouterLosses:
    """Return the mean of the layers' router losses. Layers that pool their tokens share one balance loss."""
    pools: dict[object, list[int]] = {}
    for n, mixture in enumerate(mixtures):
        balance = mixture.config.balance
        pools.setdefault((mixture.config.experts, balance) if balance.pooled else n, []).append(n)
    minimized = balance = z = torch.zeros((), device=loads[0].tokens.device)
    for members in pools.values():
        loss = balance_loss(add_loads([loads[n] for n in members])) * (len(members) / len(loads))
        balance = balance + loss
        minimized = minimized + loss * mixtures[members[0]].config.balance.loss
    for mixture, load in zip(mixtures, loads, strict=True):
        loss = load.log_z_squared / load.tokens / len(loads)
        z = z + loss
        minimized = minimized + loss * mixture.config.balance.router_z_loss
    return RouterLosses(minimized, balance, z)


def balance_loss(load: Load) -> Tensor:
    """Return E * sum_e f_e * p_e over E experts (Fedus 2021).

    f_e is the number of times per token that expert e is chosen. p_e is the mean router score of expert e.
    """
    return len(load.chosen_E) * (load.chosen_E * load.scores_E).sum() / load.tokens.square()


def sum_over_processes(loads: Sequence[Load], add_up: Callable[[Tensor], Tensor]) -> list[Load]:
    numbers = [x for load in loads for x in load]
    totals = add_up(torch.cat([x.flatten() for x in numbers])).split([x.numel() for x in numbers])
    shaped = iter([x.view(like.shape) for x, like in zip(totals, numbers, strict=True)])
    return [Load(*(next(shaped) for _ in load)) for load in loads]


def add_loads(loads: Sequence[Load]) -> Load:
    return Load(*(torch.stack(values).sum(0) for values in zip(*loads, strict=True)))
