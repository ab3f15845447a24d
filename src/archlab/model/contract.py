"""Checks of plug-in modules and functions: of their arguments on creation, and of their output at every call."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archlab.config.core.contract import breach, short
from archlab.config.core.registry import Registered


class Result(NamedTuple):
    """Shape and dtype of the tensor that a module must return."""

    shape: Sequence[int]
    dtype: torch.dtype | None
    """Required dtype; None means any floating-point dtype."""
    broadcasts: bool = False
    """Whether each axis may have size 1 instead of the size in `shape`, for broadcasting."""


def like_input(x: Tensor, *_: Any) -> Result:
    """Return the expected result of a module that changes neither shape nor dtype."""
    return Result(x.shape, x.dtype)


def check_forward(
    kind: type[Registered], module: nn.Module, arguments: str, expected: Callable[..., Result | None]
) -> None:
    """Raise UserError if `forward` does not accept the arguments. Also make every later call check the output."""
    check_arguments(kind, module.forward, arguments)
    module.register_forward_hook(partial(_check_output, kind, expected))


def check_arguments(kind: type[Registered], function: Callable[..., Any], arguments: str, **named: Any) -> None:
    """Raise UserError if a function does not accept the arguments."""
    try:
        accepted = signature(function)
    except ValueError:  # a function that is not written in Python may have no signature
        return
    try:
        accepted.bind(*filter(None, arguments.split(", ")), **named)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        allowed = ", ".join(filter(None, [arguments, *named]))
        raise breach(kind, f"{name}{accepted}: {error}; allowed: ({allowed})") from None


def checked_function(
    kind: type[Registered], name: str, function: Callable[..., Any], expected: Callable[..., Result | None]
) -> Callable[..., Any]:
    """Return the function, wrapped so that each call checks the tensor that the function returns."""
    return partial(_call, kind, name, function, expected)


def check_tensor(kind: type[Registered], function: str, value: Any, required: Result) -> None:
    """Raise UserError if the value that a plug-in returned is not a tensor of the required shape and dtype."""
    if not isinstance(value, Tensor):
        raise breach(kind, f"{function} returned {short(value)}; allowed: {_in_words(required)}")
    if not (_has_shape(value.shape, required) and _has_dtype(value, required.dtype)):
        returned = _in_words(Result(value.shape, value.dtype))
        raise breach(kind, f"{function} returned {returned}; allowed: {_in_words(required)}")


def _check_output(
    kind: type[Registered],
    expected: Callable[..., Result | None],
    module: nn.Module,
    arguments: tuple[Any, ...],
    output: Any,
) -> None:
    if required := expected(*arguments):
        check_tensor(kind, f"{type(module).__name__}.forward", output, required)


def _call(
    kind: type[Registered],
    name: str,
    function: Callable[..., Any],
    expected: Callable[..., Result | None],
    *arguments: Any,
    **named: Any,
) -> Any:
    output = function(*arguments, **named)
    if required := expected(*arguments):
        check_tensor(kind, name, output, required)
    return output


def _has_shape(shape: Sequence[int], required: Result) -> bool:
    if not required.broadcasts:
        return tuple(shape) == tuple(required.shape)
    return len(shape) == len(required.shape) and all(n in (1, m) for n, m in zip(shape, required.shape, strict=True))


def _has_dtype(value: Tensor, required: torch.dtype | None) -> bool:
    if value.dtype == required:
        return True
    is_any = required is None or torch.is_autocast_enabled(value.device.type)
    return is_any and value.dtype in (torch.float32, torch.bfloat16, torch.float16, required or torch.float64)


def _in_words(result: Result) -> str:
    dtype = "floating-point" if result.dtype is None else str(result.dtype).removeprefix("torch.")
    article = "an" if dtype[0] in "aeiou" else "a"
    shape = f"[{', '.join(map(str, result.shape))}]" if result.shape else "without axes"
    return f"{article} {dtype} tensor {shape}{'; any axis may be 1' if result.broadcasts else ''}"
