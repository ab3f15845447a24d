"""The families that archlab knows, by the `model_type` of their config.json: every module here with a FAMILY."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import archlab.families
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.families.family import Family


@cache
def families() -> dict[str, Family]:
    """model_type -> family, in alphabetical order of their files."""
    names = sorted(module.name for module in iter_modules(archlab.families.__path__))
    # This module is among them, and has no FAMILY.
    modules = (import_module(f"archlab.families.{name}") for name in names if name != "registry")
    found = [family for module in modules if isinstance(family := getattr(module, "FAMILY", None), Family)]
    return {family.model_type: family for family in found}


def find_family(model_type: object, where: str) -> Family:
    """The family of that name; UserError that lists those there are."""
    known = families()
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    found = f"model_type is {model_type!r}" if model_type else "model_type is missing"
    raise UserError(f"{where}: {found}{nearest(str(model_type), known)}; known families: {', '.join(known)}")
