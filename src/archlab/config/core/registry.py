"""The kinds that a section of a config may have: archlab's own and those of a user's file, by the same door.

A root class stands for a section, as `Optimizer` does for `train.optimizer`. A subclass with a `kind` of its own is one
of the section's kinds from its definition on: configs may name it, errors list it, and the JSON schema has it.
`@implements` says which module, function or factory does what configs of a kind describe.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from archlab.code import meaning
from archlab.config.core.base import Base, in_float32
from archlab.errors import OWN_CODE, UserError
from archlab.files import read_text

Section = Literal[
    "norm", "activation", "position", "attention", "mixer", "mlp",
    "optimizer", "schedule", "objective", "outcome", "task",
]  # fmt: skip
"""The sections whose kinds are open: a user's file may bring one more."""

_kinds: dict[str, dict[str, dict[str, type["Registered"]]]] = {section: {} for section in get_args(Section)}
"""Section -> kind -> module -> class. A file and its copy in a run's folder are two modules."""

_implementations: dict[type[Base], Callable[..., Any]] = {}

_T = TypeVar("_T", bound=Callable[..., Any])
_R = TypeVar("_R", bound="Registered")


def kind_of(config: type[Base]) -> str:
    """Return the kind that every config of a class has; empty for a class of no single kind."""
    field = config.model_fields.get("kind")
    return field.default if field and isinstance(field.default, str) else ""


def is_open(config: type[Base]) -> bool:
    """Whether a class stands for all kinds that derive from it."""
    return hasattr(config, "section") and not kind_of(config)


class Registered(Base):
    """A section of a config that may be of several kinds.

    A root class sets `section`. A field that is typed with a class without a kind of its own takes every kind that
    derives from the class.
    """

    if TYPE_CHECKING:
        kind: Any = None
        """A Literal in each class: `kind: Literal["mine"] = "mine"`."""

    section: ClassVar[Section]
    default_kind: ClassVar[str | None] = None
    """Kind of a section that does not say one. None: it must say one."""
    display_name: ClassVar[str]
    """Name on drawings and in tables. By default the kind."""

    @field_validator("*")
    @classmethod
    def _fits_into_float32(cls, value: Any) -> Any:
        """Hold a user's numbers to the limit that archlab's own fields name in their types."""
        return in_float32(value)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that has a kind of its own."""
        super().__pydantic_init_subclass__(**kwargs)
        kind = kind_of(cls)
        if kind and all(kind_of(base) != kind for base in cls.__mro__[1:] if _is_registered(base)):
            named = next((base for base in cls.__mro__ if "display_name" in vars(base)), None)
            if named is None or kind_of(named) != kind:
                cls.display_name = kind.replace("_", " ")
            if missing := sorted({*cls.__abstractmethods__, *(n for n in cls.__class_vars__ if not hasattr(cls, n))}):
                raise UserError(
                    f"{cls.section} {kind}: {cls.__name__} has no {', '.join(missing)}; define it in the class "
                    "(docs/plugins.md)"
                )
            _register(cls, kind)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Look kinds up when a value is validated, because they may be registered later."""
        if not is_open(cls):
            return handler(source)
        return core_schema.with_info_plain_validator_function(cls._validated)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the union of the kinds, the default first."""
        if not is_open(cls):
            return handler(schema)
        ordered = sorted(kinds(cls).items(), key=lambda item: item[0] != cls.default_kind)
        choices = {kind: found.__pydantic_core_schema__ for kind, found in ordered}
        return handler(core_schema.tagged_union_schema(choices, discriminator="kind"))

    @classmethod
    def _validated(cls, value: Any, info: ValidationInfo) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        value = from_old_form(value)
        kind = value.get("kind", cls.default_kind)
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        found = kinds(cls).get(kind) if isinstance(kind, str) else None
        if found is None:
            expected = ", ".join(repr(name) for name in kinds(cls))
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            )
        return found.model_validate({"kind": kind, **value}, context=info.context)


def from_old_form(value: dict[str, Any]) -> dict[str, Any]:
    """Return `{kind: mine, rate: 2}` for `{kind: plugin, name: mine, options: {rate: 2}}`, and the same of its parts.

    Files of runs and studies that were made before kinds registered themselves name a user's kind so.
    """
    options = value.get("options")
    is_old = value.get("kind") == "plugin" and isinstance(value.get("name"), str)
    if not is_old and not ("options" in value and isinstance(options, dict)):
        return value
    kind = {"kind": value["name"]} if is_old else {}
    rest = {key: given for key, given in value.items() if key not in ("options", *(("kind", "name") if is_old else ()))}
    return {**rest, **kind, **(options or {})}


def from_old_path(path: str) -> str:
    """Return `model.mlp.rate` for `model.mlp.options.rate`."""
    return path.replace(".options.", ".")


def to_old_form(value: dict[str, Any]) -> dict[str, Any]:
    """Return `{kind: plugin, name: mine, options: {rate: 2}}` for `{kind: mine, rate: 2}`; names of runs keep it."""
    options = {key: given for key, given in value.items() if key != "kind"}
    return {"kind": "plugin", "name": value["kind"], "options": options}


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that all of its kinds are registered."""
    for module in iter_modules(path):
        import_module(f"{package}.{module.name}")


def implements(*configs: type[Base]) -> Callable[[_T], _T]:
    """Decorate the module, function or factory that does what configs of these classes describe."""

    def keep(implementation: _T) -> _T:
        _implementations.update(dict.fromkeys(configs, implementation))
        return implementation

    return keep


def implementation_of(config: type[Base]) -> Callable[..., Any]:
    """Return what implements a class, or the nearest class that it derives from. Raise UserError if nothing does."""
    for base in config.__mro__:
        if base in _implementations:
            return _implementations[base]
    what = f"{config.section} {kind_of(config)}" if issubclass(config, Registered) else config.__name__
    raise UserError(
        f"{what}: nothing implements {config.__name__}; put @archlab.implements({config.__name__}) before its module "
        "or function (docs/plugins.md)"
    )


def make(config: Base, *arguments: Any) -> Any:
    """Call what implements a config, with the config and the arguments."""
    return implementation_of(type(config))(config, *arguments)


def kinds(root: type[_R]) -> dict[str, type[_R]]:
    """Kind -> class of a section, in the order of registration, none last; only those that derive from `root`."""
    found: Any = {kind: next(iter(modules.values())) for kind, modules in _kinds[root.section].items() if modules}
    known = {kind: config for kind, config in found.items() if issubclass(config, root)}
    return dict(sorted(known.items(), key=lambda item: item[0] == "none"))


def is_own(config: type[Registered]) -> bool:
    """Whether a user's file brings the class, and not archlab."""
    return not config.__module__.startswith("archlab.")


def own_kinds() -> list[type[Registered]]:
    """Return the classes of all kinds that a user's files bring, in any section."""
    found = (next(iter(modules.values())) for section in _kinds.values() for modules in section.values() if modules)
    return [config for config in found if is_own(config)]


def kind_from(module: str, section: Section, kind: str) -> type[Registered]:
    """Return the class that a module registered."""
    return _kinds[section][kind][module]


def modules_of(config: type[Registered]) -> list[str]:
    """Names of the modules that registered the kind of a class."""
    return list(_kinds[config.section].get(kind_of(config), {}))


def forget(module: str) -> None:
    """Remove what a module registered, before its changed file is imported again."""
    for kinds_of_section in _kinds.values():
        for modules in kinds_of_section.values():
            modules.pop(module, None)


def digest_of(file: Path) -> str:
    """Return 12 hex digits that change with what a file of Python does, and not with how it is written."""
    return hashlib.sha256(meaning(read_text(file)).encode()).hexdigest()[:12]


def file_of(config: type[Registered]) -> str:
    """Return the path of the file that brings a class; empty for a class of no file."""
    return getattr(sys.modules.get(config.__module__), "__file__", None) or ""


def source_digest(config: type[Registered]) -> str:
    """Return the digest of the file that brings a user's class."""
    file = file_of(config)
    return digest_of(Path(file)) if file else ""


def _register(config: type[Registered], kind: str) -> None:
    known = _kinds[config.section].setdefault(kind, {})
    for other in known.values():
        _refuse_two(config, other, kind)
    known[config.__module__] = config
    if is_own(config) and (file := file_of(config)):
        OWN_CODE.add(file)


def _refuse_two(config: type[Registered], other: type[Registered], kind: str) -> None:
    """Raise UserError if two modules bring different things of one kind."""
    if config.__module__ == other.__module__:
        return
    what = f"{config.section} {kind}"
    if not is_own(other):
        raise UserError(f"{what} is archlab's own; name yours differently")
    if source_digest(config) != source_digest(other):
        files = [file_of(c) for c in (other, config)]
        raise UserError(
            f"{what} is registered by {files[0]} and by {files[1]}, whose code differs; rename one of them, or use "
            "them in a Python of their own each"
        )


def _is_registered(config: type) -> bool:
    return issubclass(config, Registered) and hasattr(config, "section")


class KindName:
    """Annotation of a string that names a kind without fields: `activation: silu`."""

    def __init__(self, root: type[Registered]) -> None:
        self.root = root

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(kinds(self.root)), "type": "string"}

    def _known(self, name: str) -> str:
        names = list(kinds(self.root))
        if name in names:
            return name
        *others, last = map(repr, names)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
