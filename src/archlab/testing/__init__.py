"""Comparison of hand-written code with archlab: `from archlab.testing import compare`.

`compare` is imported on first use, because it loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from archlab.calls import checked

if TYPE_CHECKING:
    from archlab.testing.comparison import compare

Part = Literal["attention", "norm", "mlp", "rotary", "layer", "model"]
"""Part of a model that hand-written code can replace."""

__all__ = ["Part", "compare"]


def __getattr__(name: str) -> Any:
    if name != "compare":
        raise AttributeError(f"module 'archlab.testing' has no attribute {name!r}")
    value = globals()[name] = checked(import_module("archlab.testing.comparison").compare, __name__)
    return value
