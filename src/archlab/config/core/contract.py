"""Contract between archlab and user-defined classes, and checks of the values that user code returns.

The contract consists of the type annotations in archlab's base classes. A method that overrides a base-class method
must return the annotated type, and a class variable must have the annotated type.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, InstanceOf, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic_core import ErrorDetails, PydanticSerializationError

from archlab.config.core.base import kind_of
from archlab.errors import UserError


class ContractError(UserError):
    """Error in a user-defined class. The message names the user's file."""


_LONGEST = 60

_FIELDS = "allowed: types that YAML can hold, such as int, float, str, bool, list[int], dict[str, float], Literal, None"


def short(value: Any) -> str:
    """Return the `repr` of a value on one line, cut to 60 characters, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def file_of(config: type) -> str:
    """Return the path of the file that defines a class, or an empty string if there is no file."""
    return getattr(sys.modules.get(config.__module__), "__file__", None) or ""


def breach(config: type[Any], why: str) -> ContractError:
    """Return the error for a user-defined kind that breaks the contract of its section (docs/plugins.md)."""
    file = file_of(config)
    return ContractError(f"{file and f'plug-in {file}: '}{config.section} {kind_of(config)}: {why}")


def call(kind: type, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a user's function. Raise ContractError if the function does not accept these arguments. Errors raised inside
    the function are not caught."""
    try:
        return function(*arguments, **keywords)
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:
            raise
        raise breach(kind, f"{error}; archlab calls it with {len(arguments)} arguments (docs/plugins.md)") from None


class _ExpectedType:
    """Type that a method must return or that a class variable must have."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._is_iterator = get_origin(annotation) is Iterator
        checked = tuple[(get_args(annotation)[0], ...)] if self._is_iterator else annotation
        self._is_tuple = get_origin(checked) is tuple
        self._adapter = TypeAdapter[Any](checked)

    def converted(self, value: Any, kind: type, what: str) -> Any:
        """Return the value converted to the type, with a list converted to a tuple. Raise ContractError if the value
        does not fit."""
        if self._is_tuple and hasattr(type(value), "__iter__") and not isinstance(value, str | dict):
            value = tuple(value)  # here, because pydantic would hide what a user's generator raises
        try:
            result = self._adapter.validate_python(value)
        except ValidationError as error:
            raise breach(kind, f"{what} {self._explained(error.errors(include_url=False)[0])}") from None
        return iter(result) if self._is_iterator else result

    def _explained(self, detail: ErrorDetails) -> str:
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in detail["loc"]).lstrip(".")
        allowed = detail["msg"].removeprefix("Input should be ") if place else str(self)
        if detail["type"] == "value_error":
            allowed = detail["msg"].removeprefix("Value error, ")
        return f"{short(detail['input'])}{place and f' at {place}'}; allowed: {allowed}"

    def __str__(self) -> str:
        plain = get_type_hints(SimpleNamespace(__annotations__={"is": self._annotation}))["is"]  # without limits
        text = plain.__name__ if isinstance(plain, type) and not get_args(plain) else str(plain)
        return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def check_class(kind: type[BaseModel]) -> None:
    """Check the class variables of a user-defined class. Replace its methods and properties with wrappers that check
    what they return."""
    for name in dir(kind):
        owners = [base for base in kind.__mro__ if name in vars(base)]
        base = next((base for base in owners if is_archlabs(base)), None)
        overridden = vars(base)[name] if base else None
        if name.startswith("_") or not isinstance(overridden, FunctionType | property):
            continue
        if name in kind.model_fields:
            raise breach(kind, f"the field {name} hides the method of that name, which archlab calls; rename the field")
        if owners[0] is not base:
            setattr(kind, name, _checked(kind, name, vars(owners[0])[name], overridden))
    for name in kind.__class_vars__:
        base = next((base for base in kind.__mro__ if is_archlabs(base) and name in base.__annotations__), None)
        if base:
            expected_type = _ExpectedType(get_args(get_type_hints(base, include_extras=True)[name])[0])
            expected_type.converted(getattr(kind, name), kind, f"{kind.__name__}.{name} is")


def is_archlabs(definition: Any) -> bool:
    """Return whether a class or function is defined in archlab."""
    return definition.__module__.startswith("archlab.")


def _checked(kind: type, name: str, member: Any, overridden: FunctionType | property) -> Any:
    is_property = isinstance(overridden, property)
    annotated = overridden.fget if isinstance(overridden, property) else overridden
    result = get_type_hints(annotated, include_extras=True).get("return", type(None))
    expected_type = _ExpectedType(InstanceOf[kind] if result is Self else result)
    is_method = isinstance(member, FunctionType)
    if is_method == is_property or not (is_method or hasattr(member, "__get__")):
        actual = "a method" if is_method else "a property" if isinstance(member, property) else short(member)
        allowed = "a property" if is_property else "a method"
        raise breach(kind, f"{kind.__name__}.{name} is {actual}; allowed: {allowed}")
    function = member.fget if isinstance(member, property) else member
    if not isinstance(function, FunctionType) or hasattr(function, "is_checked"):
        return member

    @wraps(function)
    def checked(self: Any, *arguments: Any, **keywords: Any) -> Any:
        value = call(type(self), function, self, *arguments, **keywords)
        return expected_type.converted(value, type(self), f"{type(self).__name__}.{name} returned")

    checked.__dict__["is_checked"] = True
    return property(checked) if is_property else checked


def check_field_types(kind: type[BaseModel]) -> None:
    """Raise ContractError for the first field whose type pydantic does not support."""
    for name, field in kind.model_fields.items():
        try:
            TypeAdapter[Any](field.rebuild_annotation())
        except PydanticSchemaGenerationError:
            type_name = getattr(field.annotation, "__name__", field.annotation)
            raise breach(kind, f"the field {name} has the type {type_name}; {_FIELDS}") from None


def check_defined(kind: type[BaseModel]) -> None:
    """Raise ContractError if a field has a type that the user's file does not define."""
    try:
        kind.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise breach(
            kind, f"a field has the type {error.name}, which the file does not define; define or import it"
        ) from None


def check_values(config: BaseModel, context: Any) -> None:
    """Raise ContractError if the config's values would change when they are written to a file and read again."""
    kind = type(config)
    for name in kind.model_fields:
        try:
            config.model_dump(mode="json", include={name})
        except PydanticSerializationError:
            raise breach(kind, f"the field {name} is {short(getattr(config, name))}; {_FIELDS}") from None
    plain = config.model_dump(mode="json")
    try:
        again = kind.model_validate(plain, context=context).model_dump(mode="json")
    except ValidationError as error:
        again = dict(plain)
        for detail in error.errors():
            again.pop(str(detail["loc"][0]) if detail["loc"] else "", None)
    if changed := [name for name in plain if name not in again or again[name] != plain[name]]:
        name = changed[0]
        written = f"is written as {short(plain[name])}, which is not read back as {short(getattr(config, name))}"
        raise breach(kind, f"the field {name} {written}; {_FIELDS}")
