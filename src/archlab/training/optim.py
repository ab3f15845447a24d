"""The optimiser, its groups by the parameters' roles."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from archlab.config.components.plug_in import PlugInOptimizer
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW as AdamWConfig
from archlab.config.optimizer import Muon as MuonConfig
from archlab.config.schema import TrainConfig
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.roles import Role, roles_of
from archlab.training.light import LightAdamW
from archlab.training.muon import Muon


class Treatment(NamedTuple):
    """How a parameter is updated; those of one treatment are a group of the optimiser."""

    weight_decay: float
    lr_multiplier: float


def groups_by_role(model: Decoder, train: TrainConfig) -> dict[Treatment, list[nn.Parameter]]:
    """Treatment -> the parameters whose roles say so."""
    groups: dict[Treatment, list[nn.Parameter]] = {}
    for _, parameter, role, _ in roles_of(model):
        groups.setdefault(_treatment(role, model.config, train), []).append(parameter)
    assert sum(p.numel() for group in groups.values() for p in group) == sum(p.numel() for p in model.parameters())
    return groups


def _treatment(role: Role, model: ModelConfig, train: TrainConfig) -> Treatment:
    """With muP AdamW's rate of matrices falls with the width; what decays in a step, rate times decay, does not. Muon's
    updates have the right size by themselves (Yang 2023)."""
    decays = role.decays == "always" or (role.decays == "if_asked" and train.decay_embeddings)
    weight_decay, multiplier = train.weight_decay * decays, getattr(train.lr_multipliers, role.name)
    if model.mup and role.group == "matrix" and isinstance(train.optimizer, AdamWConfig):
        wider = model.mup.wider(model.d_model)
        return Treatment(weight_decay * wider, multiplier / wider)
    return Treatment(weight_decay, multiplier)


def make_optimizer(model: Decoder, train: TrainConfig) -> Optimizer:
    """The config's optimiser over the groups; `set_rate` says at which learning rate."""
    groups = [{"params": of_it, **how._asdict()} for how, of_it in groups_by_role(model, train).items()]
    match train.optimizer:
        case PlugInOptimizer() as config:
            return _own(config, model, groups)
        case MuonConfig() as config:
            finer = list(_by_kind(model, groups))
            for group in finer:
                if group["group"] != "matrix":
                    group["lr_multiplier"] *= (config.adam_lr or train.lr) / train.lr
            return Muon(finer, config, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)
        case _:
            return LightAdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def _by_kind(model: Decoder, groups: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The groups cut finer, so that each has parameters of one kind and says which (`group`: matrix, table, vector)."""
    what = {parameter: role.group for _, parameter, role, _ in roles_of(model)}
    for group in groups:
        for one in dict.fromkeys(what[p] for p in group["params"]):
            yield {**group, "params": [p for p in group["params"] if what[p] == one], "group": one}


def _own(config: PlugInOptimizer, model: Decoder, groups: list[dict[str, Any]]) -> Optimizer:
    """Of a plug-in. Its groups say what their parameters are, too: it may treat matrices unlike vectors."""
    optimizer = config.registered.make(list(_by_kind(model, groups)), config.own)
    if not isinstance(optimizer, Optimizer):
        found = type(optimizer).__name__
        raise UserError(f"optimizer {config.name}: its factory made a {found}; allowed: a torch.optim.Optimizer")
    if any("lr_multiplier" not in group for group in optimizer.param_groups):
        raise UserError(f"optimizer {config.name}: it has groups without lr_multiplier; hand on the groups as they are")
    return optimizer


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next update, of each group times its multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]
