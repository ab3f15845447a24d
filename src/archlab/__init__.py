"""archlab: a laboratory for the architecture of decoder-only language models.

Everything here is imported on first use, so that `import archlab` is fast and does not load torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archlab.config.component import Component, StateTensor
    from archlab.config.outcomes import register_outcome
    from archlab.config.plugins import Options, register_mixer, register_mlp, register_optimizer
    from archlab.cost.summary import cost
    from archlab.exchange.configs import load_config
    from archlab.exchange.save import save_pretrained
    from archlab.infer.generate import Session, generate, left_pad
    from archlab.infer.load import from_pretrained
    from archlab.model.decoder import Decoder
    from archlab.model.projection import Projection
    from archlab.report.run_study import run_study
    from archlab.study.record import load_study
    from archlab.train.loop import train

__version__ = "0.1.0"
__all__ = [
    "Component",
    "Decoder",
    "Options",
    "Projection",
    "Session",
    "StateTensor",
    "__version__",
    "cost",
    "from_pretrained",
    "generate",
    "left_pad",
    "load_config",
    "load_study",
    "register_mixer",
    "register_mlp",
    "register_optimizer",
    "register_outcome",
    "run_study",
    "save_pretrained",
    "train",
]

_HOME = {
    "Component": "archlab.config.component",
    "Decoder": "archlab.model.decoder",
    "Options": "archlab.config.plugins",
    "Projection": "archlab.model.projection",
    "Session": "archlab.infer.generate",
    "StateTensor": "archlab.config.component",
    "from_pretrained": "archlab.infer.load",
    "generate": "archlab.infer.generate",
    "left_pad": "archlab.infer.generate",
    "load_config": "archlab.exchange.configs",
    "load_study": "archlab.study.record",
    "register_mixer": "archlab.config.plugins",
    "register_mlp": "archlab.config.plugins",
    "register_optimizer": "archlab.config.plugins",
    "register_outcome": "archlab.config.outcomes",
    "run_study": "archlab.report.run_study",
    "save_pretrained": "archlab.exchange.save",
}
"""Public name -> the module that defines it."""

_FUNCTIONS = {"archlab.cost": "archlab.cost.summary", "archlab.train": "archlab.train.loop"}
"""Package that is also the function of its name -> the module that defines the function."""


class _CallablePackage(ModuleType):
    """A package that can be called as the function of its name, `archlab.cost(config)`, whichever was imported."""

    @property
    def __wrapped__(self) -> Any:
        """The function, where `inspect` and `help` look for it."""
        return getattr(import_module(_FUNCTIONS[self.__name__]), self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


for _package in _FUNCTIONS:
    import_module(_package).__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archlab' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
