"""The user's kinds that decide a run."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from archlab.config.core.plugins import bringing
from archlab.config.core.registry import KindName, Registered, is_users, kind_of, kinds, source_digest
from archlab.config.layers import with_overrides
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.schema import Config
from archlab.errors import UserError


def users_kinds_in(config: Config) -> list[tuple[str, type[Registered]]]:
    """Field and class of every kind in a config that a user's file brings."""
    of_model = [(f"model.{path}", kind) for path, kind in users_kinds_in_model(config.model)]
    return of_model + [(path, kind) for path, kind in _own(config) if not path.startswith("model.")]


def users_kinds_in_model(model: ModelConfig) -> list[tuple[str, type[Registered]]]:
    """Field and class of every kind in a model, or in one of its layer kinds, that a user's file brings."""
    models = [model]
    for change in model.layers.kinds.values() if model.layers else ():
        with suppress(ValidationError, UserError):  # a wrong one is reported elsewhere
            models.append(with_overrides(model, change))
    return list(dict.fromkeys(found for each in models for found in _own(each)))


def refuse_users_kinds(model: ModelConfig, where: str) -> None:
    """Raise a ConfigError that names the kinds of a model that archlab does not bring, for a form that lacks them."""
    problems = [
        Problem(f"model.{path}", f"{kind_of(kind)} is not archlab's own; allowed in {where}: archlab's kinds")
        for path, kind in users_kinds_in_model(model)
    ]
    raise_problems(problems, "the config")


def sources(config: Config) -> dict[str, str]:
    """`section kind` -> digest of the file that brings it, for each of a user's kinds that decide the run."""
    return _digests(users_kinds_in(config))


def sources_inside(section: BaseModel) -> dict[str, str]:
    """Return the same of a user's kinds in the fields of any section, without the kind of the section itself."""
    return _digests(_own(section))


def _digests(found: Iterable[tuple[str, type[Registered]]]) -> dict[str, str]:
    return {f"{kind.section} {kind_of(kind)}": source_digest(kind) for _, kind in found}


def deciding(config: Config) -> tuple[str, ...]:
    """Those of `plugins` that bring what decides the run."""
    needed = {bringing(config.plugins, kind) for _, kind in users_kinds_in(config)}
    return tuple(plugin for plugin in config.plugins if plugin in needed)


def _own(section: BaseModel, at: str = "") -> Iterator[tuple[str, type[Registered]]]:
    """Field and class of a user's kinds, in the section and in those inside it."""
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{at}{name}"
        named = next((kinds(m.root).get(value) for m in field.metadata if isinstance(m, KindName)), None)
        if named and is_users(named):
            yield path, named
        if isinstance(value, Registered) and is_users(type(value)):
            yield f"{path}.kind", type(value)
        if isinstance(value, BaseModel):
            yield from _own(value, f"{path}.")
