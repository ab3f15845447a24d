"""AdamW with stated decay groups, and its learning rate as a pure function of the step."""

import math

from torch import nn
from torch.optim import AdamW

from archlab.config.schema import TrainConfig
from archlab.config.training import ResolvedTrain
from archlab.model.roles import roles_of


def decay_groups(model: nn.Module, decay_embeddings: bool) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(decayed, not decayed), by each parameter's role."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for _, parameter, role, _ in roles_of(model):
        is_decayed = role.decays == "always" or (role.decays == "if_asked" and decay_embeddings)
        (decayed if is_decayed else kept).append(parameter)
    assert sum(p.numel() for p in decayed + kept) == sum(p.numel() for p in model.parameters())
    return decayed, kept


def make_optimizer(model: nn.Module, train: TrainConfig) -> AdamW:
    """AdamW (Loshchilov 2019) over the two groups."""
    decayed, kept = decay_groups(model, train.decay_embeddings)
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def warmup_steps(train: ResolvedTrain) -> int:
    """Warm-up in steps, from steps or a share of the run."""
    return train.warmup if isinstance(train.warmup, int) else round(train.warmup * train.steps)


def learning_rate(train: ResolvedTrain, step: int) -> float:
    """The rate of update `step`, counted from 0: linear warm-up, then the schedule's shape."""
    steps, warmup = train.steps, warmup_steps(train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return train.lr * _shape(train, done)


def _shape(train: ResolvedTrain, done: float) -> float:
    """The rate as a share of its peak, when the share `done` of the steps after the warm-up is done."""
    final = train.final_lr
    match train.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1 + (final - 1) * done
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        case "wsd":
            decay = train.decay
            return 1 + (final - 1) * max(0.0, (done - (1 - decay)) / decay) if decay else 1.0
