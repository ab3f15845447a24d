"""archlab: a laboratory for the architecture of decoder-only language models.

Everything here is imported on first use, so that `import archlab` is fast and does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archlab.config.io import load_config
    from archlab.infer.generate import generate
    from archlab.model.decoder import Decoder

__version__ = "0.1.0"
__all__ = ["Decoder", "__version__", "generate", "load_config"]

_HOME = {
    "Decoder": "archlab.model.decoder",
    "generate": "archlab.infer.generate",
    "load_config": "archlab.config.io",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archlab' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
