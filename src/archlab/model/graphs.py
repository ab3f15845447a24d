"""Compiled graphs: how to keep a function out of them, and how many versions of a function torch may compile."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from archlab.errors import UserError
from archlab.model.torch_private import has_compiler, kept_out_of_graphs, set_recompile_limit

FORMS = 64
"""Maximum number of compiled versions of a function. New shapes, kinds of layers and capacities need new versions.

Beyond this number, torch runs the function uncompiled, or fails.
"""

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of compiled graphs.

    `torch.compiler.disable` does the same, but loads the compiler at once, which takes a second even in an eager run.
    """
    disabled = kept_out_of_graphs(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def check_compiler(setting: str) -> None:
    """Raise UserError if this machine has no C++ compiler. The error says that `setting` needs one."""
    if not has_compiler():
        raise UserError(
            f"{setting}: torch compiles to C++, but no C++ compiler was found; install g++, or name a compiler in $CXX"
        )


def allow_forms() -> None:
    """Raise torch's limit on compiled versions of a function to FORMS in this process.

    The default limit of 8 is meant for one model.
    """
    set_recompile_limit(FORMS)
