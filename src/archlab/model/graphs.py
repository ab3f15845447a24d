"""Compiled graphs: making them, and what stays outside of them."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from archlab.errors import UserError
from archlab.model.torch_private import has_compiler, kept_out_of_graphs, set_recompile_limit

FORMS = 64
"""Of a function that torch may compile before it goes on uncompiled, or fails: shapes, kinds of layers, capacities."""

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """As `torch.compiler.disable`, which loads the compiler at once: it takes a second, and an eager run needs none."""
    disabled = kept_out_of_graphs(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def check_compiler(asked: str) -> None:
    """UserError, naming what asked for it, where no compiled code can be made on this machine."""
    if not has_compiler():
        raise UserError(f"{asked}: torch compiles to C++, and there is no C++ compiler here (g++, or what $CXX names)")


def allow_forms() -> None:
    """From here on, in this process; torch's own limit of eight is meant for the shapes of one model."""
    set_recompile_limit(FORMS)
