"""The config that a URL names: a published model or a file of the folder, and the fields that its query changes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from archlab.config.io import find_preset
from archlab.errors import UserError
from archlab.exchange.configs import Shape, hint_for, load_shape, source_kind
from archlab.files import real_path

_SECTIONS = ("model.", "train.")
_NOT_FROM_A_URL = ("train.start", "train.teacher", "train.log")
"""Fields that name files or services. A URL may come from somebody else, so it cannot set them."""


class UnknownNameError(UserError):
    """The URL names no model, file or study."""


def overrides_in(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the fields of a config that a query changes, with their values as text.

    All other names in a query are settings of the view, such as `context`. Raise UserError for a field that a URL
    cannot set.
    """
    fields = {name: value for name, value in query if "." in name}
    for field in fields:
        if not field.startswith(_SECTIONS) or field.startswith(_NOT_FROM_A_URL):
            raise UserError(f"{field}: a link cannot set this field; allowed: fields of model and train")
    return fields


def load(name: str, overrides: Mapping[str, str], root: Path) -> Shape:
    """Return the config `name` with its overrides. `name` is a published model, or a path below the folder `root`."""
    return load_shape(find(name, root), [f"{field}={value}" for field, value in overrides.items()])


def find(name: str, root: Path) -> str:
    """Return the name of a published model, or the path of a config below `root`. Raise UnknownNameError otherwise."""
    below = path_below(name, root)
    if below is not None and (below.is_dir() or below.suffix in (".yaml", ".yml")) and source_kind(below):
        return str(below)
    if find_preset(name) is not None:
        return name
    raise UnknownNameError(f"unknown model {name!r}{hint_for(name)}")


def path_below(name: str, root: Path) -> Path | None:
    """Return the path of an existing file or folder below `root`; None if there is none. Links may not lead outside."""
    try:
        path = real_path(root / name)
        is_below = path.is_relative_to(real_path(root)) and path.exists()
    except (OSError, ValueError):  # the name is too long or contains a null byte
        return None
    return root / path.relative_to(real_path(root)) if is_below and path != real_path(root) else None
