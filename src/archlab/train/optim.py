"""AdamW, its groups by the parameters' roles."""

from inspect import unwrap

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from archlab.config.schema import TrainConfig
from archlab.model.roles import roles_of


def groups_by_role(model: nn.Module, decay_embeddings: bool) -> dict[tuple[bool, float], list[nn.Parameter]]:
    """(whether they decay, multiplier of the learning rate) -> the parameters whose roles say so."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for _, parameter, role, _ in roles_of(model):
        is_decayed = role.decays == "always" or (role.decays == "if_asked" and decay_embeddings)
        groups.setdefault((is_decayed, role.lr_multiplier), []).append(parameter)
    assert sum(p.numel() for group in groups.values() for p in group) == sum(p.numel() for p in model.parameters())
    return groups


def make_optimizer(model: nn.Module, train: TrainConfig) -> AdamW:
    """AdamW (Loshchilov 2019) over the groups; `set_rate` says at which learning rate."""
    groups = [
        {"params": parameters, "weight_decay": train.weight_decay if decays else 0.0, "lr_multiplier": multiplier}
        for (decays, multiplier), parameters in groups_by_role(model, train.decay_embeddings).items()
    ]
    return LightAdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


class LightAdamW(AdamW):
    """AdamW whose methods do not load torch's compiler, a second's work, only to keep themselves out of graphs: nothing
    compiles an optimiser here."""

    add_param_group = unwrap(AdamW.add_param_group)
    zero_grad = unwrap(AdamW.zero_grad)
    state_dict = unwrap(AdamW.state_dict)
    load_state_dict = unwrap(AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(AdamW.step))


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next update, of each group times its multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]
