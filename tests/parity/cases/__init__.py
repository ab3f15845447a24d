"""One file per family: its tiny checkpoints, with other option values than the defaults."""

from importlib import import_module
from pkgutil import iter_modules

from tests.parity.tiny import Case

CASES: list[Case] = [
    case for module in iter_modules(__path__) for case in import_module(f"{__name__}.{module.name}").CASES
]
