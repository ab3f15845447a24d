"""Rules about parameter roles. If a config sets the learning-rate multiplier of a role, some parameter must have the
role."""

from archlab.config.components.component import RoleName
from archlab.config.layers import distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.rules.rule import Rule
from archlab.config.schema import Config


def _roles(m: ModelConfig) -> set[RoleName]:
    components = (branch.component for layer in distinct_layers(m) for branch in layer.branches)
    roles: set[RoleName] = {role for component in components for role in component.roles()}
    if not m.head.tied or m.embedding.width is not None:
        roles.add("head")
    return roles


def _has(role: RoleName) -> Rule[Config]:
    def broken(c: Config) -> str | None:
        multiplier = getattr(c.train.lr_multipliers, role)
        if multiplier == 1 or role in _roles(c.model):
            return None
        return f"{multiplier:g}, but no parameter of this model has the role {role}; leave it out"

    return Rule(f"train.lr_multipliers.{role}", ("train.lr_multipliers", "model"), broken)


_MAY_BE_MISSING: tuple[RoleName, ...] = ("narrow", "head", "convolution")
ROLE_RULES: tuple[Rule[Config], ...] = tuple(map(_has, _MAY_BE_MISSING))
