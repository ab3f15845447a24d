"""Registry of the kinds of each open section of a config: archlab's own, and those of a user's files.

A root class stands for a section, as `Optimizer` does for `train.optimizer`. A subclass with its own `kind` becomes a
kind of the section as soon as it is defined: configs may name it, errors list it, and the JSON schema has it.
`@implements` names the module, function or factory that carries out configs of a kind.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from archlab.code import meaning
from archlab.config.core import contract
from archlab.config.core.base import Base, Settings
from archlab.errors import OWN_CODE, UserError
from archlab.files import read_text

Section = Literal[
    "norm", "activation", "position", "attention", "mixer", "mlp",
    "optimizer", "schedule", "objective", "outcome", "task",
]  # fmt: skip
"""Sections whose kinds are open: a user's file may add kinds."""

_kinds: dict[str, dict[str, dict[str, type["Registered"]]]] = {section: {} for section in get_args(Section)}
"""Section -> kind -> module -> class. A file and its copy in a run's folder are two modules."""

_caches: list[Any] = []
"""Functions decorated with `cache_of_kinds`."""

_in_the_schema: set[type["Registered"]] = set()
"""Root classes whose kinds a JSON schema is currently listing."""

_digests: dict[str, str] = {}
"""Module of a user's kinds -> digest of its file when it was imported."""

_implementations: dict[type[Base], Callable[..., Any]] = {}

Check = Callable[..., Any]
"""Function that checks the implementation of a user's kind."""

_T = TypeVar("_T", bound=Callable[..., Any])
_R = TypeVar("_R", bound="Registered")


def cache_of_kinds(function: _T) -> _T:
    """Decorate a function whose results stay valid until a kind is registered or removed."""
    cached: Any = cache(function)
    _caches.append(cached)
    return cached


def kind_of(config: type[Base]) -> str:
    """Return the kind that every config of a class has. Empty for a class without one single kind."""
    field = config.model_fields.get("kind")
    return field.default if field and isinstance(field.default, str) else ""


def is_open(config: type[Base]) -> bool:
    """Return whether a class stands for all kinds that derive from it."""
    return hasattr(config, "section") and not kind_of(config)


class Registered(Settings):
    """Section of a config that can have several kinds.

    A root class sets `section`. A field typed with a class without its own kind accepts every kind that derives from
    that class.
    """

    if TYPE_CHECKING:
        kind: Any = None
        """A Literal in each class: `kind: Literal["mine"] = "mine"`."""

    section: ClassVar[Section]
    default_kind: ClassVar[str | None] = None
    """Kind of a section that does not name one. None: the section must name one."""
    display_name: ClassVar[str]
    """Name in drawings and tables. By default the kind."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that has its own kind."""
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
                contract.check_class(cls, breach)
            _register(cls, kind)

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if the class variables of a new kind are not allowed in its section."""

    def __hash__(self) -> int:
        """Hash lists and mappings, which a user's fields may hold, by their JSON."""
        try:
            return hash((type(self), *self.__dict__.values()))
        except TypeError:
            return hash((type(self), self.model_dump_json()))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Look kinds up when a value is validated, because they may be registered later."""
        if not is_open(cls):
            try:
                return handler(source)
            except PydanticSchemaGenerationError:
                contract.check_field_types(cls, breach)
                raise
        return core_schema.with_info_plain_validator_function(cls._validated)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the union of the kinds, the default first.

        A section inside one of the same root, such as that of an MLP made of MLPs, is described only by the names of
        its kinds.
        """
        if not is_open(cls):
            return super().__get_pydantic_json_schema__(schema, handler)
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
            contract.check_values(config, info.context, breach)
        return config


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that all of its kinds are registered."""
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")


def implements(*configs: type[Base]) -> Callable[[_T], _T]:
    """Decorate the module, function or factory that carries out configs of these classes."""

    def keep(implementation: _T) -> _T:
        for config in configs:
            known = _implementations.get(config)
            if known and _is_archlabs(known.__module__) and not _is_archlabs(implementation.__module__):
                raise UserError(
                    f"{config.__name__} is archlab's own; derive a class with its own kind and implement that class"
                )
        _implementations.update(dict.fromkeys(configs, implementation))
        return implementation

    return keep


def implementation_of(config: type[Base]) -> Callable[..., Any]:
    """Return the implementation of a class, or of the nearest class that it derives from. Raise UserError if there is
    none."""
    for base in config.__mro__:
        if base in _implementations:
            return _implementations[base]
    what = f"{config.section} {kind_of(config)}" if issubclass(config, Registered) else config.__name__
    raise UserError(
        f"{what}: nothing implements {config.__name__}; put @archlab.implements({config.__name__}) before its module "
        "or function (docs/plugins.md)"
    )


def make(config: Base, *arguments: Any, check: Check | None = None) -> Any:
    """Call the implementation of a config with the config and the arguments. `check` is passed to `call`."""
    return call(type(config), config, *arguments, check=check)


def call(kind: type[Base], *arguments: Any, check: Check | None = None) -> Any:
    """Call the implementation of a kind.

    `check(kind, result, *arguments)` is called for a user's kind only. It returns the result, or raises `breach` if the
    result does not fit the section.
    """
    implementation = implementation_of(kind)
    if check is None or not is_users(kind):
        return implementation(*arguments)
    return check(kind, contract.call(kind, breach, implementation, *arguments), *arguments)


@cache_of_kinds
def kinds(root: type[_R]) -> dict[str, type[_R]]:
    """Return kind -> class for the kinds that derive from `root`, in the order of registration, with `none` last."""
    classes: Any = {kind: next(iter(modules.values())) for kind, modules in _kinds[root.section].items() if modules}
    known = [(kind, config) for kind, config in classes.items() if issubclass(config, root)]
    return dict(sorted(known, key=lambda item: item[0] == "none"))


def breach(config: type[Any], why: str) -> contract.ContractError:
    """Return the error for a user's kind that breaks the contract of its section (docs/plugins.md)."""
    file = file_of(config)
    return contract.ContractError(f"{file and f'plug-in {file}: '}{config.section} {kind_of(config)}: {why}")


def is_users(config: type[Base]) -> bool:
    """Return whether the class comes from a user's file instead of archlab."""
    return not _is_archlabs(config.__module__)


def _is_archlabs(module: str) -> bool:
    return module.startswith("archlab.")


def check_implemented(module: str) -> None:
    """Raise UserError if a kind of a module has no implementation. A kind that derives from archlab's kind has one."""
    classes = [modules[module] for section in _kinds.values() for modules in section.values() if module in modules]
    for config in classes:
        contract.check_defined(config, breach)
        bases = [base for base in config.__mro__[1:] if _is_registered(base) and kind_of(base)]
        if all(map(is_users, bases)):
            implementation_of(config)


def users_kinds() -> list[type[Registered]]:
    """Return the classes of all user-defined kinds, in any section."""
    classes = (next(iter(modules.values())) for section in _kinds.values() for modules in section.values() if modules)
    return [config for config in classes if is_users(config)]


def modules_of(config: type[Registered]) -> list[str]:
    """Return the names of the modules that registered the kind of a class."""
    return list(_kinds[config.section].get(kind_of(config), {}))


def forget(module: str) -> None:
    """Remove what a module registered, before its changed file is imported again."""
    for kinds_of_section in _kinds.values():
        for modules in kinds_of_section.values():
            modules.pop(module, None)
    _digests.pop(module, None)
    _clear_caches()


def digest_of(file: Path) -> str:
    """Return 12 hex digits that depend on what a Python file does, but not on its formatting."""
    return hashlib.sha256(meaning(read_text(file)).encode()).hexdigest()[:12]


def file_of(config: type[Base]) -> str:
    """Return the path of the file that defines a class. Empty for a class without a file."""
    return getattr(sys.modules.get(config.__module__), "__file__", None) or ""


def source_digest(config: type[Registered]) -> str:
    """Return the digest that the file of a user's class had when it was imported."""
    return _digests.get(config.__module__, "")


def _register(config: type[Registered], kind: str) -> None:
    if kind == "plugin":
        raise UserError(f"{config.section} plugin: the name is reserved for an older form; choose another name")
    known = _kinds[config.section].setdefault(kind, {})
    if is_users(config) and (file := file_of(config)):
        OWN_CODE.add(file)
        _digests.setdefault(config.__module__, digest_of(Path(file)))
    for other in known.values():
        _refuse_two(config, other, kind)
    known[config.__module__] = config
    _clear_caches()


def _clear_caches() -> None:
    for cached in _caches:
        cached.cache_clear()


def _refuse_two(config: type[Registered], other: type[Registered], kind: str) -> None:
    """Raise UserError if two modules register different classes for one kind."""
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
        files = [file_of(c) for c in (other, config)]
        raise UserError(
            f"{what} is registered by {files[0]} and by {files[1]}, whose code differs; rename one of them, or use "
            "each in a separate Python process"
        )


def _is_registered(config: type) -> bool:
    return issubclass(config, Registered) and hasattr(config, "section")


class Named(Registered):
    """Section whose kinds have no fields. A config holds the name of one: `activation: silu`."""

    @classmethod
    def check_class(cls) -> None:
        """Refuse fields, because configs could not set them."""
        if fields := [name for name in cls.model_fields if name != "kind"]:
            raise UserError(
                f"{cls.section} {kind_of(cls)}: has the field {fields[0]}, but configs give only the name of a kind; "
                "use a class variable"
            )


class KindName:
    """Annotation of a string that names a kind."""

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
