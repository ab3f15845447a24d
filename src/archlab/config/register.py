"""Deprecated functions that register user-defined kinds. Today a class with its own `kind` registers itself."""

import sys
from collections.abc import Callable
from types import new_class
from typing import Any, Literal

from archlab.code import calls_to_user
from archlab.config.components.component import MLP, Component, Mixer, RoleName
from archlab.config.core.base import Base
from archlab.config.core.registry import Registered, implements
from archlab.config.core.text import deprecated
from archlab.config.optimizer import Optimizer
from archlab.errors import UserError

_ROLES: tuple[RoleName, ...] = ("input", "narrow", "output", "head", "convolution", "output_bias")


def _any_role(component: Component) -> tuple[RoleName, ...]:
    return _ROLES


class Options(Base):
    """Base class for the fields of a user-defined kind that is registered with a deprecated `register_...` function."""


def register_mlp(name: str, options: type[Component], module: Callable[..., Any]) -> None:
    """Register an MLP kind. `module(options, site)` returns a torch module that maps [B, T, D] to [B, T, D].

    Deprecated: derive a class from `archlab.MLP` instead.
    """
    deprecated("archlab.register_mlp", "derive a class from archlab.MLP instead")
    implements(as_kind(name, options, MLP, Component, roles=_any_role))(module)


def register_mixer(name: str, options: type[Component], module: Callable[..., Any]) -> None:
    """Register a mixer kind. `module(options, site)` returns a torch module that maps [B, T, D] to [B, T, D].

    Deprecated: derive a class from `archlab.Mixer` instead.
    """
    deprecated("archlab.register_mixer", "derive a class from archlab.Mixer instead")
    implements(as_kind(name, options, Mixer, Component, roles=_any_role))(module)


def register_optimizer(name: str, options: type[Options], factory: Callable[..., Any]) -> None:
    """Register an optimizer kind. `factory(groups, options)` returns a torch optimizer for these parameter groups.

    Deprecated: derive a class from `archlab.Optimizer` instead.
    """
    deprecated("archlab.register_optimizer", "derive a class from archlab.Optimizer instead")
    implements(as_kind(name, options, Optimizer, Options))(
        lambda config, to_train: factory(to_train.groups_by_use, config)
    )


def as_kind(name: str, options: type[Base], root: type[Registered], base: type[Base], **class_vars: Any) -> type[Any]:
    """Return a subclass of `options` that has the kind `name` in the section of `root`.

    The subclass belongs to the module that called `register_...`. `class_vars` become its class variables. Raise
    UserError if `options` is not a subclass of `base`.
    """
    if not (isinstance(options, type) and issubclass(options, base)):
        raise UserError(
            f"{root.section} {name}: its options are {options!r}; allowed: a subclass of archlab.{base.__name__}"
        )
    caller = sys._getframe(calls_to_user()).f_globals["__name__"]
    named = f"{root.section}_{name}"  # pickle finds the class by this name
    body = {
        "__module__": caller,
        "__qualname__": named,
        "__annotations__": {"kind": Literal[name]},
        "kind": name,
        **class_vars,
    }
    new_kind = new_class(named, (options, root), exec_body=lambda namespace: namespace.update(body))
    setattr(sys.modules[caller], named, new_kind)
    return new_kind
