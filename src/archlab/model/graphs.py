"""Settings of torch.compile: functions to keep out of graphs, and the number of compiled versions of a function."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from archlab.errors import UserError
from archlab.model.torch_private import has_compiler, kept_out_of_graphs, set_recompile_limit

FORMS = 64
"""Maximum number of compiled versions of a function.

torch compiles a new version for each new tensor shape, kind of layer, and cache capacity. Beyond this number, it runs
the function uncompiled, or fails.
"""

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function out of compiled graphs.

    `torch.compiler.disable` does the same, but it loads the compiler immediately, which takes a second even if nothing
    is compiled.
    """
    disabled = kept_out_of_graphs(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return run


def compiled_once(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function when it is first called. All callers share the compiled code."""
    return _compiled(function)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    allow_forms()
    return torch.compile(function)


def check_compiler(setting: str) -> None:
    """Raise UserError if this machine has no C++ compiler. The message says that `setting` needs a C++ compiler."""
    if not has_compiler():
        raise UserError(
            f"{setting}: torch compiles to C++, but no C++ compiler was found; install g++, or name a compiler in $CXX"
        )


def allow_forms() -> None:
    """Let torch compile up to FORMS versions of each function, in this process.

    The default of 8 is enough for one model, but not for several.
    """
    set_recompile_limit(FORMS)
