"""AdamW with stated decay groups."""

from torch import nn
from torch.optim import AdamW

from archlab.config.schema import TrainConfig


def decay_groups(model: nn.Module, decay_embeddings: bool) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(decayed, not decayed): projections are; norms and biases are not; embeddings and the head if asked."""
    decayed_roles = {"input", "output"} | ({"embedding", "head"} if decay_embeddings else set())
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_decayed = name != "bias" and getattr(module, "role", None) in decayed_roles
            (decayed if is_decayed else kept).append(parameter)
    assert sum(p.numel() for p in decayed + kept) == sum(p.numel() for p in model.parameters())
    return decayed, kept


def make_optimizer(model: nn.Module, train: TrainConfig) -> AdamW:
    """AdamW (Loshchilov 2019) over the two groups."""
    decayed, kept = decay_groups(model, train.decay_embeddings)
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)
