"""Compiled graphs: making them, and what stays outside of them."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from archlab.errors import UserError

FORMS = 64
"""Of a function that torch may compile before it goes on uncompiled, or fails: shapes, kinds of layers, capacities."""

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """As `torch.compiler.disable`, which loads the compiler at once: it takes a second, and an eager run needs none."""
    # torch's own optimisers are kept out of graphs by it; it loads the compiler when it is first called.
    disabled: Callable[P, R] = torch._disable_dynamo(function)  # pyright: ignore[reportPrivateImportUsage]

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def check_compiler(asked: str) -> None:
    """UserError, naming what asked for it, where no compiled code can be made on this machine."""
    if not has_compiler():
        raise UserError(f"{asked}: torch compiles to C++, and there is no C++ compiler here (g++, or what $CXX names)")


def has_compiler() -> bool:
    """Whether torch finds the compiler that it builds its code with; Triton builds its launchers by one, too."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return False
    return True


def allow_forms() -> None:
    """From here on, in this process; torch's own limit of eight is meant for the shapes of one model."""
    torch._dynamo.config.recompile_limit = FORMS  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def trust_guards() -> None:
    """From here on, in this process: what is compiled does not look again at the shapes of all that it is given, which
    the guards before it have seen. Of a small model's decoding step it is a tenth."""
    from torch._inductor import config

    config.size_asserts = False
