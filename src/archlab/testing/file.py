"""Import of hand-written code from a file that the user names."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.files import expand_user


def load_target(place: str) -> Any:
    """Return the object that `FILE.py:NAME` names. The file runs, with all rights of the user.

    While it runs, it can import files from its own folder. Raise UserError if the file or the name does not exist, or
    if the file fails.
    """
    file, _, name = place.rpartition(":")
    if not file.endswith(".py") or not name:
        raise UserError(f"{place}: allowed: FILE.py:NAME, where NAME is a class, a function or a module in the file")
    path = expand_user(file)
    if not path.is_file():
        raise UserError(f"{file}: no such file")
    module = _run(path)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{file}: defines no {name!r}{choose(name, own)}")
    return getattr(module, name)


def _run(path: Path) -> Any:
    name = f"archlab_verified_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look for their module there
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        hint = "put the lines that only a script needs under `if __name__ == '__main__':`"
        raise UserError(f"{path}: exits Python when it is imported; {hint}") from None
    except Exception as error:
        raise UserError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module
