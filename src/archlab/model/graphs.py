"""What stays outside of compiled graphs."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

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
