"""Rules of LoRA: what it can change, and what it cannot be combined with."""

from archlab.config.layers import distinct_layers, stacks
from archlab.config.lora import fits
from archlab.config.optimizer import LrMultipliers, Muon
from archlab.config.problems import choose
from archlab.config.rules.rule import Rule
from archlab.config.schema import Config


def _names_projections(c: Config) -> str | None:
    if c.train.lora is None:
        return None
    layers = [layer for stack in stacks(c.model) for layer in distinct_layers(stack)]
    paths = list(dict.fromkeys(path for layer in layers for path in layer.projections()))
    if not paths:
        return "the layers of this model have no projections that LoRA could change; allowed: train.lora: null"
    for name in c.train.lora.modules or ():
        if not any(fits(name, path) for path in paths):
            parts = list(dict.fromkeys(part for path in paths for part in path.split(".")))
            return f"{name} is not a projection of the model's layers{choose(name, parts)}"
    return None


def _prescribed_rates(c: Config) -> str | None:
    if c.train.lora is None or c.model.mup is None:
        return None
    return "muP prescribes no learning rates for the matrices of LoRA; allowed with model.mup: null"


def _undivided(way: str) -> Rule[Config]:
    def broken(c: Config) -> str | None:
        n = getattr(c.parallel, way)
        return None if c.train.lora is None or n == 1 else f"{n}; allowed with train.lora: 1"

    return Rule(f"parallel.{way}", (f"parallel.{way}", "train.lora"), broken)


def _tables_are_frozen(c: Config) -> str | None:
    is_ignored = c.train.lora is not None and c.train.decay_embeddings
    return (
        "true has no effect, because train.lora leaves embeddings as they are; allowed: false" if is_ignored else None
    )


def _only_matrices_train(role: str) -> Rule[Config]:
    def broken(c: Config) -> str | None:
        multiplier = getattr(c.train.lr_multipliers, role)
        if c.train.lora is None or multiplier == 1:
            return None
        return f"{multiplier:g} has no effect, because train.lora leaves these parameters as they are; leave it out"

    return Rule(f"train.lr_multipliers.{role}", ("train.lr_multipliers", "train.lora"), broken)


def _adam_updates_something(c: Config) -> str | None:
    optimizer = c.train.optimizer
    if c.train.lora is None or not isinstance(optimizer, Muon) or optimizer.adam_lr is None:
        return None
    return f"{optimizer.adam_lr:g} has no effect, because Muon updates all matrices of train.lora; leave it out"


_TRAINED = ("input", "narrow", "output")
"""Roles of the matrices that LoRA can change."""

LORA_RULES: tuple[Rule[Config], ...] = (
    Rule("train.lora.modules", ("train.lora", "model"), _names_projections),
    Rule("train.lora", ("train.lora", "model"), _prescribed_rates),
    _undivided("tensor"),
    _undivided("expert"),
    Rule("train.decay_embeddings", ("train.decay_embeddings", "train.lora"), _tables_are_frozen),
    *(_only_matrices_train(role) for role in LrMultipliers.model_fields if role not in _TRAINED),
    Rule("train.optimizer.adam_lr", ("train.optimizer", "train.lora"), _adam_updates_something),
)
