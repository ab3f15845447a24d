"""Paths in a config or study file: training texts, trained weights and plug-ins, relative to the folder of the file."""

import re
from collections.abc import Callable, Iterator
from glob import has_magic, iglob
from pathlib import Path
from typing import Any

from archlab.config.core.trust import is_file
from archlab.config.schema import INSTALLED_TEXTS
from archlab.files import expand_user, real_path

_TEXT = re.compile(r"data\.(mixture\.[^.]+\.)?path")
_FOLDER_OR_HUB_ID = ("train.start", "train.teacher.path", "data.tokenizer")
"""Fields that hold a path or a hub id."""


def resolve_text_paths(values: Any, home: Path) -> None:
    """Replace the paths in `data.path` and in the sources of `data.mixture` by full paths.

    A path is a file, a folder or a glob pattern. It is looked up in `home`, then in the working folder. If it exists in
    neither folder, its full path is in `home`. `values` may contain `data.path` or `data: {path: ...}`.
    """
    for section, key in _paths_in(values):
        path = str(expand_user(section[key]))
        section[key] = str((_folder_of(path, home, _exists_in) or real_path(home)) / path)


def resolve_weight_paths(values: Any, home: Path) -> None:
    """Replace paths to trained weights and tokenizers by full paths, if they exist in `home` or in the working folder.
    Other values may be hub ids."""
    for field in _FOLDER_OR_HUB_ID:
        *sections, key = field.split(".")
        found = values
        for section in sections:
            found = found.get(section) if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(path := found.get(key), str):
            path = str(expand_user(path))
            if folder := _folder_of(path, home, lambda path, folder: (folder / path).exists()):
                found[key] = str(real_path(folder / path))


def resolve_plugin_paths(values: Any, home: Path) -> None:
    """Replace each file name in `plugins` by the full path of the file. A file is looked up in `home`, then in the
    working folder."""
    named = values.get("plugins") if isinstance(values, dict) else None
    if isinstance(named, list):
        values["plugins"] = [_resolved(plugin, home) for plugin in named]


def plugins_of(values: Any) -> list[str]:
    """Return the plug-ins that raw values name. Entries that are not strings are ignored."""
    named = values.get("plugins") if isinstance(values, dict) else None
    return [plugin for plugin in named if isinstance(plugin, str)] if isinstance(named, list) else []


def _resolved(plugin: Any, home: Path) -> Any:
    if not (isinstance(plugin, str) and is_file(plugin)):
        return plugin
    path = str(expand_user(plugin))
    return str((_folder_of(path, home, lambda path, folder: (folder / path).is_file()) or real_path(home)) / path)


def _folder_of(path: str, home: Path, exists_in: Callable[[str, Path], bool]) -> Path | None:
    """Return the folder in which the path exists: `home`, otherwise the working folder. Return None if it exists in
    neither."""
    return next((real_path(folder) for folder in (home, Path()) if exists_in(path, folder)), None)


def _exists_in(path: str, folder: Path) -> bool:
    """Return whether the path exists in the folder. Match a pattern only up to its first part with a wildcard, so that
    only one folder is listed."""
    parts = Path(path).parts
    first = next((n for n, part in enumerate(parts) if has_magic(part)), None)
    if first is None:
        return (folder / path).exists()
    beginning = Path(*parts[: first + 1])
    return next(iglob(str(beginning.with_name(beginning.name.replace("**", "*"))), root_dir=folder), None) is not None


def _paths_in(values: Any, at: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in values.items() if isinstance(values, dict) else ():
        name = f"{at}{key}"
        if isinstance(value, dict) and name.partition(".")[0] == "data":
            yield from _paths_in(value, f"{name}.")
        elif isinstance(value, str) and value not in ("", *INSTALLED_TEXTS) and _TEXT.fullmatch(name):
            yield values, key
