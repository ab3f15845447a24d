"""The optimiser, its groups by the parameters' roles."""

from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from archlab.config.plug_in import PlugInOptimizer
from archlab.config.schema import TrainConfig
from archlab.errors import UserError
from archlab.model.roles import roles_of


def groups_by_role(model: nn.Module, decay_embeddings: bool) -> dict[tuple[bool, float], list[nn.Parameter]]:
    """(whether they decay, multiplier of the learning rate) -> the parameters whose roles say so."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for _, parameter, role, _ in roles_of(model):
        is_decayed = role.decays == "always" or (role.decays == "if_asked" and decay_embeddings)
        groups.setdefault((is_decayed, role.lr_multiplier), []).append(parameter)
    assert sum(p.numel() for group in groups.values() for p in group) == sum(p.numel() for p in model.parameters())
    return groups


def make_optimizer(model: nn.Module, train: TrainConfig) -> Optimizer:
    """AdamW (Loshchilov 2019) or a plug-in over the groups; `set_rate` says at which learning rate."""
    groups = [
        {"params": parameters, "weight_decay": train.weight_decay if decays else 0.0, "lr_multiplier": multiplier}
        for (decays, multiplier), parameters in groups_by_role(model, train.decay_embeddings).items()
    ]
    if isinstance(train.optimizer, PlugInOptimizer):
        return _own(train.optimizer, model, groups)
    return LightAdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def _own(config: PlugInOptimizer, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
    """Of a plug-in. Its groups say what their parameters are, too: it may treat matrices unlike vectors."""
    what = {parameter: role.group for _, parameter, role, _ in roles_of(model)}
    finer = [
        {**group, "params": [p for p in group["params"] if what[p] == one], "group": one}
        for group in groups
        for one in dict.fromkeys(what[p] for p in group["params"])
    ]
    optimizer = config.registered.make(finer, config.own)
    if not isinstance(optimizer, Optimizer):
        found = type(optimizer).__name__
        raise UserError(f"optimizer {config.name}: its factory made a {found}; allowed: a torch.optim.Optimizer")
    if any("lr_multiplier" not in group for group in optimizer.param_groups):
        raise UserError(f"optimizer {config.name}: it has groups without lr_multiplier; hand on the groups as they are")
    return optimizer


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
