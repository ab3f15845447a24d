"""User-defined kinds that a run depends on."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from archlab.config.core.base import kind_of
from archlab.config.core.plugins import plugin_of
from archlab.config.core.registry import KindName, Registered, is_users, kinds, source_digest
from archlab.config.layers import with_overrides
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import Problem, raise_problems
from archlab.config.schema import Config
from archlab.errors import UserError


def users_kinds_in(config: Config) -> list[tuple[str, type[Registered]]]:
    """Return (field, class) for every user-defined kind in a config."""
    in_model = [(f"model.{path}", kind) for path, kind in users_kinds_in_model(config.model)]
    return in_model + [(path, kind) for path, kind in _users_kinds_inside(config) if not path.startswith("model.")]


def users_kinds_in_model(model: ModelConfig) -> list[tuple[str, type[Registered]]]:
    """Return (field, class) for every user-defined kind in a model or one of its layer kinds."""
    models = [model]
    for change in model.layers.kinds.values() if model.layers else ():
        with suppress(ValidationError, UserError):  # a wrong layer kind is reported elsewhere
            models.append(with_overrides(model, change))
    return list(dict.fromkeys(field_kind for one_model in models for field_kind in _users_kinds_inside(one_model)))


def refuse_users_kinds(model: ModelConfig, where: str) -> None:
    """Raise a ConfigError that names the user-defined kinds of a model, if it has any. `where` is the name of the
    format that does not support them."""
    problems = [
        Problem(f"model.{path}", f"{kind_of(kind)} is not archlab's own; allowed in {where}: archlab's kinds")
        for path, kind in users_kinds_in_model(model)
    ]
    raise_problems(problems, "the config")


def sources(config: Config) -> dict[str, str]:
    """Return the digest of the file that registers each user-defined kind in a config. The keys have the form `section
    kind`, such as `mlp mine`."""
    return _digests(users_kinds_in(config))


def sources_inside(section: BaseModel) -> dict[str, str]:
    """Return the digest of the file that registers each user-defined kind in the fields of a section.

    The keys have the form `section kind`, such as `mlp mine`. The kind of the section itself is left out.
    """
    return _digests(_users_kinds_inside(section))


def _digests(field_kinds: Iterable[tuple[str, type[Registered]]]) -> dict[str, str]:
    return {f"{kind.section} {kind_of(kind)}": source_digest(kind) for _, kind in field_kinds}


def deciding(config: Config) -> tuple[str, ...]:
    """Return the entries of `plugins` that the result of the run depends on."""
    needed = {plugin_of(config.plugins, kind) for _, kind in users_kinds_in(config)}
    return tuple(plugin for plugin in config.plugins if plugin in needed)


def _users_kinds_inside(section: BaseModel, at: str = "") -> Iterator[tuple[str, type[Registered]]]:
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{at}{name}"
        named = next((kinds(m.root).get(value) for m in field.metadata if isinstance(m, KindName)), None)
        if named and is_users(named):
            yield path, named
        if isinstance(value, Registered) and is_users(type(value)):
            yield f"{path}.kind", type(value)
        if isinstance(value, BaseModel):
            yield from _users_kinds_inside(value, f"{path}.")
