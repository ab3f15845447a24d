"""Rules about the roles of parameters: a learning rate's multiplier is for a role that comes up."""

from collections.abc import Callable

from archlab.config.components.latent_attention import Latent
from archlab.config.components.moe import MoE
from archlab.config.components.plug_in import PlugInComponent
from archlab.config.layers import distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.rules.rule import Rule
from archlab.config.schema import Config


def _has_convolutions(m: ModelConfig) -> bool:
    return any(branch.name == "mixer" for layer in distinct_layers(m) for branch in layer.branches)


def _has_narrow_vectors(m: ModelConfig) -> bool:
    components = (branch.component for layer in distinct_layers(m) for branch in layer.branches)
    return any(isinstance(component, (Latent, MoE)) for component in components)


def _has_a_head(m: ModelConfig) -> bool:
    return not m.head.tied or m.embedding.width is not None


_COMES_UP: dict[str, Callable[[ModelConfig], bool]] = {
    "narrow": _has_narrow_vectors,
    "head": _has_a_head,
    "convolution": _has_convolutions,
}
"""Roles that a model may lack."""


def _has(role: str, comes_up: Callable[[ModelConfig], bool]) -> Rule[Config]:
    def broken(c: Config) -> str | None:
        multiplier = getattr(c.train.lr_multipliers, role)
        if multiplier == 1 or comes_up(c.model) or _has_plugins(c.model):
            return None
        return f"{multiplier:g}, but no parameter of this model has the role {role}; leave it out"

    return Rule(f"train.lr_multipliers.{role}", ("train.lr_multipliers", "model"), broken)


def _has_plugins(m: ModelConfig) -> bool:
    """Whose roles are not known before they are built."""
    components = (branch.component for layer in distinct_layers(m) for branch in layer.branches)
    return any(isinstance(component, PlugInComponent) for component in components)


ROLE_RULES: tuple[Rule[Config], ...] = tuple(_has(role, comes_up) for role, comes_up in _COMES_UP.items())
