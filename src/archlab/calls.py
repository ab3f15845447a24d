"""Check of the arguments of public functions: a wrong one gives one message that names the argument."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from archlab.config.core.plain import plain_number
from archlab.config.problems import nearest, override_advice
from archlab.errors import UserError

_F = TypeVar("_F", bound=Callable[..., Any])

_LONGEST = 60
"""Maximum number of characters of a value in a message. Of a longer one, only the class is shown."""

_WORDS: Mapping[Any, str] = {
    int: "an integer", float: "a number", str: "a text", bool: "True or False", NoneType: "None", Path: "a path",
    "Config": "a config of archlab.load_config", "ModelConfig": "the `model` of a config", "Tensor": "a tensor",
    "Decoder": "a model of archlab.from_pretrained or archlab.Decoder", "Base": "a config class",
    "dtype": "a dtype", "Module": "a module",
    "Hardware": "a device of archlab.load_hardware",
    "Callback": "an instance of a subclass of archlab.Callback", "device": "a device of torch",
}  # fmt: skip
"""Names of types, for messages. Classes of other modules are written as text, so that this module imports none."""


def checked(function: _F, package: str = "archlab") -> _F:
    """Return the function with a check of its arguments. Its annotations say which values are allowed.

    The check raises a UserError that names the argument, the value and the allowed values. Numbers and bools of NumPy
    become Python's. No other value changes. `package` is the module in which the function, or the class of the method,
    is public.
    """
    public_name = f"{package}.{function.__qualname__.removesuffix('.__init__')}"
    signature = inspect.signature(function)
    types = cache(lambda: get_type_hints(function))  # once, and not before the first call

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            allowed = ", ".join(name for name in signature.parameters if name != "self") or "no argument"
            raise UserError(f"{public_name}: {error}; allowed: {allowed}{override_advice(*args)}") from None
        for name, value in bound.arguments.items():
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            values = tuple(map(plain_number, value if several else (value,)))
            for each in values:
                if name in types() and not _fits(each, types()[name]):
                    raise UserError(f"{name}: {_shown(each)}{_allowed(each, types()[name])}{override_advice(each)}")
            bound.arguments[name] = values if several else values[0]
        return function(*bound.args, **bound.kwargs)

    call.__module__ = package  # pickle looks the function up there
    return cast("_F", call)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type. Items of lists, tuples and mappings are checked too. Other iterables are not
    read, because some can be read only once."""
    origin, inner = get_origin(kind), get_args(kind)
    if choices := _choices(kind):
        return any(_fits(value, each) for each in choices)
    if kind is Any:
        return True
    if origin is Literal:
        return isinstance(value, str | int | NoneType) and value in inner  # arrays cannot be compared
    if origin is type:
        return isinstance(value, type) and issubclass(value, inner[0])
    if kind in (int, float):  # numbers of NumPy have other classes
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if origin is None:
        return isinstance(getattr(value, "_orig_mod", value), kind)  # a compiled model contains the model
    if not isinstance(value, origin) or isinstance(value, str | bytes | bytearray | memoryview):
        return False
    if isinstance(value, Mapping):
        return all(_fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(_fits(item, inner[0]) for item in value)


def _allowed(value: Any, kind: Any) -> str:
    """Return the end of a message: the nearest word, or the allowed values of a type."""
    words = [word for each in (kind, *_choices(kind)) if get_origin(each) is Literal for word in get_args(each)]
    near = nearest(value, words) if isinstance(value, str) else ""
    return near or f"; allowed: {_in_words(kind)}"


def _in_words(kind: Any) -> str:
    """Return the allowed values of a type as words."""
    origin, inner = get_origin(kind), get_args(kind)
    if choices := _choices(kind):
        *others, last = dict.fromkeys(map(_in_words, choices))
        return f"{', '.join(others)} or {last}" if others else last
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is type:
        return f"a subclass of {inner[0].__name__}"
    if origin is Callable:
        return "a function"
    if origin is not None:
        return "a dict" if issubclass(origin, Mapping) else f"a list (each item: {_in_words(inner[0])})"
    return _WORDS.get(kind) or _WORDS.get(kind.__name__) or kind.__name__


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union or of a type variable. Empty for any other type."""
    if isinstance(kind, TypeVar):
        return kind.__constraints__ or (kind.__bound__ or Any,)
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | list | tuple | dict | type | NoneType) else ""
    return text if 0 < len(text) <= _LONGEST else f"a value of class {type(value).__name__}"
