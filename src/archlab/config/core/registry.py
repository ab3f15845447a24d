"""Registry of archlab's own kinds and user-defined kinds, for each section of a config to which users may add kinds.

A root class represents a section: `Optimizer` represents `train.optimizer`. A subclass with its own `kind` becomes a
kind of the section as soon as it is defined: configs may name it, errors list it, and the JSON schema contains it.
`@implements` marks the module, function or factory that implements a kind.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from archlab.code import normalized
from archlab.config.core import contract
from archlab.config.core.base import Base, Settings, kind_of
from archlab.errors import OWN_CODE, UserError
from archlab.files import read_text

Section = Literal[
    "norm", "activation", "position", "attention", "mixer", "mlp",
    "optimizer", "schedule", "objective", "outcome", "task",
]  # fmt: skip
"""Names of the sections to which a user's file may add kinds."""

_kinds: dict[str, dict[str, dict[str, type["Registered"]]]] = {section: {} for section in get_args(Section)}
"""Registered classes by section, kind and module. A user's file and its copy in a run's folder are two modules, and
both may register the same kind."""

_caches: list[Any] = []

_in_the_schema: set[type["Registered"]] = set()

_digests: dict[str, str] = {}
"""Digest of each user's file at the time of its import, by module name."""

_implementations: dict[type[Base], Callable[..., Any]] = {}

Check = Callable[..., Any]
"""Function that checks what the implementation of a user-defined kind returns."""

_T = TypeVar("_T", bound=Callable[..., Any])
_R = TypeVar("_R", bound="Registered")


def cache_of_kinds(function: _T) -> _T:
    """Decorate a function to cache its results until a kind is registered or removed."""
    cached: Any = cache(function)
    _caches.append(cached)
    return cached


def cache_of_configs(function: _T) -> _T:
    """Decorate a function of configs to cache its last results until a kind is registered or removed."""
    cached: Any = lru_cache(maxsize=256)(function)
    _caches.append(cached)
    return cached


def is_open(config: type[Base]) -> bool:
    """Return whether a class represents a whole section, or a group of its kinds, instead of a single kind."""
    return hasattr(config, "section") and not kind_of(config)


class Registered(Settings):
    """Section of a config that can have several kinds.

    A root class sets `section`. If the type of a field is a class without its own kind, the field accepts every kind
    that derives from the class.
    """

    if TYPE_CHECKING:
        kind: Any = None
        """A Literal in each class: `kind: Literal["mine"] = "mine"`."""

    section: ClassVar[Section]
    default_kind: ClassVar[str | None] = None
    """Kind that a section has if its config does not set `kind`. None: the config must set `kind`."""
    display_name: ClassVar[str]
    """Name of the kind in drawings and tables. By default, this is `kind` with underscores replaced by spaces."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        kind = kind_of(cls)
        if "kind" in vars(cls).get("__annotations__", {}) and not kind:
            raise UserError(f"{cls.__name__} has a kind without a value; write `kind: Literal['mine'] = 'mine'`")
        if (
            kind
            and hasattr(cls, "section")
            and all(kind_of(base) != kind for base in cls.__mro__[1:] if _is_registered(base))
        ):
            bases = [base for base in cls.__mro__ if issubclass(base, Base)]
            named = next((base for base in bases if "display_name" in vars(base)), None)
            if named is None or kind_of(named) != kind:
                cls.display_name = kind.replace("_", " ")
            if missing := sorted({*cls.__abstractmethods__, *(n for n in cls.__class_vars__ if not hasattr(cls, n))}):
                raise UserError(
                    f"{cls.section} {kind}: {cls.__name__} has no {', '.join(missing)}; define it in the class "
                    "(docs/plugins.md)"
                )
            cls.check_class()
            if is_users(cls):
                contract.check_class(cls)
            _register(cls, kind)

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if the section does not allow the class variables of a new kind."""

    def __hash__(self) -> int:
        """Return a hash of the values. If a user-defined field holds a list or mapping, which has no hash, return a
        hash of the JSON instead."""
        try:
            return hash((type(self), *self.__dict__.values()))
        except TypeError:
            return hash((type(self), self.model_dump_json()))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that looks up the kind at each validation, because kinds may be registered after the schema
        is created."""
        if not is_open(cls):
            try:
                return handler(source)
            except PydanticSchemaGenerationError:
                contract.check_field_types(cls)
                raise
        return core_schema.with_info_plain_validator_function(cls._validated)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return a JSON schema that is the union of all kinds, with the default kind first.

        A section may contain sections of the same root class, such as an MLP made of MLPs. For these inner sections,
        the schema contains only the names of the kinds.
        """
        if not is_open(cls):
            return handler(schema)
        if cls in _in_the_schema:
            return {"type": "object", "properties": {"kind": {"type": "string", "enum": list(kinds(cls))}}}
        ordered = sorted(kinds(cls).items(), key=lambda item: item[0] != cls.default_kind)
        choices = {kind: kind_class.__pydantic_core_schema__ for kind, kind_class in ordered}
        _in_the_schema.add(cls)
        try:
            return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))
        finally:
            _in_the_schema.remove(cls)

    @classmethod
    def _validated(cls, value: Any, info: ValidationInfo) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        kind = value.get("kind", cls.default_kind)
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind_class = kinds(cls).get(kind) if isinstance(kind, str) else None
        if kind_class is None:
            expected = ", ".join(repr(name) for name in kinds(cls))
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            )
        config = kind_class.model_validate({"kind": kind, **value}, context=info.context)
        if is_users(kind_class):
            contract.check_values(config, info.context)
        return config


def import_all(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import every module of a package, which registers the kinds that the modules define. Return the modules."""
    return [import_module(f"{package}.{module.name}") for module in iter_modules(path)]


def implements(*configs: type[Base]) -> Callable[[_T], _T]:
    """Decorate a module, function or factory as the implementation of these config classes."""

    def keep(implementation: _T) -> _T:
        for config in configs:
            known = _implementations.get(config)
            if known and contract.is_archlabs(known) and not contract.is_archlabs(implementation):
                raise UserError(
                    f"{config.__name__} is archlab's own; derive a class with its own kind and implement that class"
                )
        _implementations.update(dict.fromkeys(configs, implementation))
        return implementation

    return keep


def implementation_of(config: type[Base]) -> Callable[..., Any]:
    """Return the implementation of a config class or of its nearest base class that has one. Raise UserError if
    there is none."""
    for base in config.__mro__:
        if base in _implementations:
            return _implementations[base]
    what = f"{config.section} {kind_of(config)}" if issubclass(config, Registered) else config.__name__
    raise UserError(
        f"{what}: nothing implements {config.__name__}; put @archlab.implements({config.__name__}) before its module "
        "or function (docs/plugins.md)"
    )


def make(config: Base, *arguments: Any, check: Check | None = None) -> Any:
    """Call the implementation of a config's kind with the config and `arguments`. `check` is passed to `call`."""
    return call(type(config), config, *arguments, check=check)


def call(kind: type[Base], *arguments: Any, check: Check | None = None) -> Any:
    """Call the implementation of a kind and return its result.

    If the kind is user-defined and `check` is given, return `check(kind, result, *arguments)` instead of the result.
    `check` returns the result, or raises `contract.breach` if the result does not fit the section.
    """
    implementation = implementation_of(kind)
    if check is None or not is_users(kind):
        return implementation(*arguments)
    return check(kind, contract.call(kind, implementation, *arguments), *arguments)


@cache_of_kinds
def kinds(root: type[_R]) -> dict[str, type[_R]]:
    """Return a dict from the names of kinds to the classes that derive from `root`. They are in the order of their
    registration, but `none` is last."""
    classes: Any = {kind: next(iter(modules.values())) for kind, modules in _kinds[root.section].items() if modules}
    known = [(kind, config) for kind, config in classes.items() if issubclass(config, root)]
    return dict(sorted(known, key=lambda item: item[0] == "none"))


def is_users(config: type[Base]) -> bool:
    return not contract.is_archlabs(config)


def check_implemented(module: str) -> None:
    """Raise UserError if the module registered a kind without an implementation. Kinds that derive from archlab's kinds
    inherit an implementation."""
    classes = [modules[module] for section in _kinds.values() for modules in section.values() if module in modules]
    for config in classes:
        contract.check_defined(config)
        bases = [base for base in config.__mro__[1:] if _is_registered(base) and kind_of(base)]
        if all(map(is_users, bases)):
            implementation_of(config)


def users_kinds() -> list[type[Registered]]:
    classes = (next(iter(modules.values())) for section in _kinds.values() for modules in section.values() if modules)
    return [config for config in classes if is_users(config)]


def modules_of(config: type[Registered]) -> list[str]:
    return list(_kinds[config.section].get(kind_of(config), {}))


def forget(module: str) -> None:
    """Remove the kinds that a module registered, before its changed file is imported again."""
    for kinds_of_section in _kinds.values():
        for modules in kinds_of_section.values():
            modules.pop(module, None)
    _digests.pop(module, None)
    _clear_caches()


def digest_of(file: Path) -> str:
    """Return a digest of 12 hex digits that depends on what a Python file does, but not on its formatting."""
    return hashlib.sha256(normalized(read_text(file)).encode()).hexdigest()[:12]


def source_digest(config: type[Registered]) -> str:
    """Return the digest that the file of a user-defined class had when it was imported."""
    return _digests.get(config.__module__, "")


def _register(config: type[Registered], kind: str) -> None:
    if kind == "plugin":
        raise UserError(f"{config.section} plugin: the name is reserved for an older form; choose another name")
    known = _kinds[config.section].setdefault(kind, {})
    if is_users(config) and (file := contract.file_of(config)):
        OWN_CODE.add(file)
        _digests.setdefault(config.__module__, digest_of(Path(file)))
    for other in known.values():
        _refuse_conflict(config, other, kind)
    known[config.__module__] = config
    _clear_caches()


def _clear_caches() -> None:
    for cached in _caches:
        cached.cache_clear()


def _refuse_conflict(config: type[Registered], other: type[Registered], kind: str) -> None:
    what = f"{config.section} {kind}"
    if config.__module__ == other.__module__:
        if config.__module__ == "__main__":  # a cell of a notebook that runs again
            return
        raise UserError(
            f"{what} is the kind of two classes, {other.__name__} and {config.__name__}; rename one of them"
        )
    if not is_users(other):
        raise UserError(f"{what} is archlab's own; choose another name")
    if source_digest(config) != source_digest(other):
        files = [contract.file_of(c) for c in (other, config)]
        raise UserError(
            f"{what} is registered by {files[0]} and by {files[1]}, whose code differs; rename one of them, or use "
            "each in a separate Python process"
        )


def _is_registered(config: type) -> bool:
    return issubclass(config, Registered) and hasattr(config, "section")


class Named(Registered):
    """Section whose kinds have no fields. A config contains only the name of a kind: `activation: silu`."""

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if the class has fields, because a config cannot set them."""
        if fields := [name for name in cls.model_fields if name != "kind"]:
            raise UserError(
                f"{cls.section} {kind_of(cls)}: has the field {fields[0]}, but configs give only the name of a kind; "
                "use a class variable"
            )


class KindName:
    """Annotation of a string field whose value is the name of a kind."""

    def __init__(self, root: type[Registered]) -> None:
        self.root = root

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(kinds(self.root)), "type": "string"}

    def _known(self, name: Any) -> str:
        names = list(kinds(self.root))
        if isinstance(name, str) and name in names:
            return name
        *others, last = map(repr, names)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
