"""AdamW with stated decay groups."""

from torch import nn
from torch.optim import AdamW

from archlab.config.schema import TrainConfig
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
