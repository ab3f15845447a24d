"""Trust in plug-ins. A plug-in may run if the user names it, or if it is in a folder into which archlab copied it on
this machine.

A config names plug-ins, and reading the config imports them. A user names a plug-in on the command line, in Python, or
in a YAML file given by its path. A user who gives only a folder has not decided to run the code in the folder, which
may come from anywhere.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path

from archlab.errors import UserError
from archlab.files import expand_user, real_path, state_folder, write_page

TRUST = "ARCHLAB_TRUST"
"""Name of an environment variable. If its value is 1, every plug-in may run. Worker processes inherit the variable."""

_named: set[str] = set()
"""Full paths of files, and names of modules, that the user named in this process."""

_ran: set[str] = set()

_OWN = real_path(Path(__file__).parents[2])
"""archlab's own folder, whose studies also have plug-ins."""

_may_name = ContextVar("may_name", default=True)


def accept(*sources: str | Path) -> None:
    """Record that the user named these files and modules. The record lasts until the process ends."""
    if _may_name.get():
        _named.update(map(_full_name, sources))


@contextmanager
def naming_nothing() -> Iterator[None]:
    """Within the `with` block, nothing counts as named by the user: a request names it, which may come from a link."""
    token = _may_name.set(False)
    try:
        yield
    finally:
        _may_name.reset(token)


def accept_from(file: Path, sources: Iterable[str | Path]) -> None:
    """If the user named `file`, record that the user also named `sources`, which are the plug-ins that the file
    names."""
    if _full_name(file) in _named:
        accept(*sources)


def remember(plugins: Iterable[str]) -> None:
    """Allow later processes of this user to import these plug-ins, which archlab is copying into a folder.

    The record of allowed plug-ins is a folder with one file per fingerprint, so that several processes can add to it at
    the same time. If the record cannot be written, later processes ask for --trust.
    """
    for plugin in plugins:
        with suppress(UserError, OSError):
            listed = _record() / fingerprint(plugin, Path(plugin).read_bytes() if is_file(plugin) else None)
            if not listed.is_file():
                write_page(listed, f"{plugin}\n")


def check(plugins: Mapping[str, bytes | None]) -> None:
    """Raise UserError if a plug-in may not run. `plugins` maps the full path of each file to its content, and the
    name of each module to None."""
    prints = {plugin: fingerprint(plugin, content) for plugin, content in plugins.items()}
    if refused := [plugin for plugin in plugins if not _may_run(plugin, prints[plugin])]:
        it = "it" if len(refused) == 1 else "them"
        raise UserError(
            f"plugins: {', '.join(map(_with_folder, refused))}: a folder's config names this code, but archlab on this "
            f"machine did not write that config. Read {it} first; to run {it}, add --trust (in Python and in workers: "
            f"{TRUST}=1)"
        )
    _ran.update(prints.values())


def fingerprint(plugin: str, content: bytes | None) -> str:
    """Return the sha256, as 64 hex digits, of a file's content or of a module's name and folder.

    The content of a module is not read, because it changes with each new version of the installed package.
    """
    data = content if content is not None else "\0".join((plugin, *map(str, _roots(plugin)))).encode()
    return hashlib.sha256(data).hexdigest()


def is_file(plugin: str) -> bool:
    """Return whether a plug-in is a file. Otherwise it is a module that Python finds by its name."""
    return plugin.endswith(".py")


@contextmanager
def trusting(all_plugins: bool) -> Iterator[None]:
    """If `all_plugins` is true, let every plug-in run within the `with` block, in this process and in the processes
    that it starts."""
    before = os.environ.get(TRUST)
    if all_plugins:
        os.environ[TRUST] = "1"
    try:
        yield
    finally:
        if all_plugins:
            os.environ.pop(TRUST)
            os.environ.update({TRUST: before} if before is not None else {})


def _may_run(plugin: str, sha256: str) -> bool:
    if os.environ.get(TRUST) == "1" or plugin in _named or sha256 in _ran or (_record() / sha256).is_file():
        return True
    if is_file(plugin) and real_path(plugin).is_relative_to(_OWN):
        return True
    return not is_file(plugin) and not _roots(plugin)  # the import will report that the module does not exist


def _full_name(source: str | Path) -> str:
    return str(real_path(expand_user(source))) if isinstance(source, Path) or is_file(source) else source


def _roots(module: str) -> tuple[Path, ...]:
    """Return the folders that contain the module's top-level package, without importing it. Return an empty tuple if
    Python does not find the module."""
    spec = None
    with suppress(ImportError, ValueError):  # not the name of a module, or a module without a file
        spec = find_spec(module.partition(".")[0])
    if spec is None:
        return ()
    if spec.submodule_search_locations is not None:
        return tuple(Path(folder).resolve().parent for folder in spec.submodule_search_locations)
    return (Path(spec.origin).resolve().parent,) if spec.has_location and spec.origin else (Path(sys.prefix),)


def _with_folder(plugin: str) -> str:
    roots = () if is_file(plugin) else _roots(plugin)
    return f"{plugin} (in {roots[0]})" if roots else plugin


def _record() -> Path:
    return state_folder() / "plug-ins"
