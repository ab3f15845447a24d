"""Which plug-ins decide a run."""

from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from archlab.config.components.plug_in import PlugIn
from archlab.config.components.plugins import registered_by
from archlab.config.layers import COMPONENTS, with_overrides
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.schema import Config
from archlab.errors import UserError


def used(config: Config) -> Iterator[PlugIn]:
    """The plug-ins among the components, and the optimiser."""
    yield from used_by_model(config.model)
    if isinstance(config.train.optimizer, PlugIn):
        yield config.train.optimizer


def used_by_model(model: ModelConfig) -> Iterator[PlugIn]:
    """The plug-ins among the components of the model and of its layer kinds."""
    models = [model]
    for change in model.layers.kinds.values() if model.layers else ():
        with suppress(ValidationError, UserError):  # a wrong one is told elsewhere
            models.append(with_overrides(model, change))
    components = (getattr(model, name) for model in models for name in COMPONENTS)
    yield from (part for part in components if isinstance(part, PlugIn))


def refuse_plug_ins(model: ModelConfig, where: str) -> None:
    """ConfigError that names the plug-ins of a model, which cannot be written in that form."""
    found = (
        Problem(f"model.{p.section}.name", f"{p.name}; allowed in {where}: no plug-in") for p in used_by_model(model)
    )
    raise_problems(list(dict.fromkeys(found)), "the config")


def sources(config: Config) -> dict[str, str]:
    """What plug-ins decide of the run -> digest of the module that brings it; empty where it is archlab's own alone."""
    return {f"{part.section} {part.name}": part.registered.digest for part in used(config)}


def deciding(config: Config) -> tuple[str, ...]:
    """Those of `plugins` that bring what decides the run."""
    brought = {registered_by(config.plugins, part.section, part.name) for part in used(config)}
    return tuple(plugin for plugin in config.plugins if plugin in brought)
