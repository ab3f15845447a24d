"""What archlab expects of a user's module, checked whenever the module computes something."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from archlab.config.core.contract import short
from archlab.config.core.registry import Registered, breach


class Result(NamedTuple):
    """The tensor that a module should return."""

    shape: Sequence[int]
    dtype: torch.dtype | None
    """None: any floating-point format."""
    broadcasts: bool = False
    """Whether an axis may be 1 instead."""


def like_input(x: Tensor, *_: Any) -> Result:
    """Return what a module returns that changes neither shape nor dtype."""
    return Result(x.shape, x.dtype)


def check_forward(
    kind: type[Registered], module: nn.Module, arguments: str, expected: Callable[..., Result | None]
) -> None:
    """Raise UserError if `forward` does not take the arguments; from now on, also if it returns the wrong tensor."""
    check_arguments(kind, module.forward, arguments)
    module.register_forward_hook(partial(_check_output, kind, expected))


def check_arguments(kind: type[Registered], function: Callable[..., Any], arguments: str, **named: Any) -> None:
    """Raise UserError if a function does not take the arguments."""
    try:
        taken = signature(function)
    except ValueError:  # a function that is not written in Python may not say
        return
    try:
        taken.bind(*filter(None, arguments.split(", ")), **named)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        allowed = ", ".join(filter(None, [arguments, *named]))
        raise breach(kind, f"{name}{taken}: {error}; allowed: ({allowed})") from None


def checked_function(
    kind: type[Registered], name: str, function: Callable[..., Any], expected: Callable[..., Result | None]
) -> Callable[..., Any]:
    """Return a function with a check of the tensor that it returns."""
    return partial(_call, kind, name, function, expected)


def check_tensor(kind: type[Registered], what: str, found: Any, wanted: Result) -> None:
    """Raise UserError if what a user's code returned is not the wanted tensor."""
    if not isinstance(found, Tensor):
        raise breach(kind, f"{what} returned {short(found)}; allowed: {_in_words(wanted)}")
    if not (_has_shape(found.shape, wanted) and _has_dtype(found, wanted.dtype)):
        returned = _in_words(Result(found.shape, found.dtype))
        raise breach(kind, f"{what} returned {returned}; allowed: {_in_words(wanted)}")


def _check_output(
    kind: type[Registered],
    expected: Callable[..., Result | None],
    module: nn.Module,
    arguments: tuple[Any, ...],
    output: Any,
) -> None:
    if wanted := expected(*arguments):
        check_tensor(kind, f"{type(module).__name__}.forward", output, wanted)


def _call(
    kind: type[Registered],
    name: str,
    function: Callable[..., Any],
    expected: Callable[..., Result | None],
    *arguments: Any,
    **named: Any,
) -> Any:
    output = function(*arguments, **named)
    if wanted := expected(*arguments):
        check_tensor(kind, name, output, wanted)
    return output


def _has_shape(found: Sequence[int], wanted: Result) -> bool:
    if not wanted.broadcasts:
        return tuple(found) == tuple(wanted.shape)
    return len(found) == len(wanted.shape) and all(n in (1, m) for n, m in zip(found, wanted.shape, strict=True))


def _has_dtype(found: Tensor, wanted: torch.dtype | None) -> bool:
    """Whether a tensor has the dtype. Under autocast, torch itself chooses the format of some operations."""
    if found.dtype == wanted:
        return True
    is_any = wanted is None or torch.is_autocast_enabled(found.device.type)
    return is_any and found.dtype in (torch.float32, torch.bfloat16, torch.float16, wanted or torch.float64)


def _in_words(result: Result) -> str:
    dtype = "floating-point" if result.dtype is None else str(result.dtype).removeprefix("torch.")
    article = "an" if dtype[0] in "aeiou" else "a"
    shape = f"[{', '.join(map(str, result.shape))}]" if result.shape else "without axes"
    return f"{article} {dtype} tensor {shape}{', where an axis may be 1' if result.broadcasts else ''}"
