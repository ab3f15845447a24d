"""Plug-ins: a user's own Python modules, which add kinds of components, optimizers, outcomes and other sections.

The `plugins` field of a config names the modules. A process that reads the config imports them.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.errors import PydanticUserError

from archlab.code import local_imports
from archlab.config.core import registry
from archlab.config.core.contract import ContractError
from archlab.config.core.registry import Registered, digest_of
from archlab.config.core.text import FileName
from archlab.config.core.trust import check, is_file
from archlab.errors import OWN_CODE, UserError
from archlab.files import expand_user, read_bytes, real_path

_read: dict[str, str] = {}


def plugin_of(plugins: Iterable[str], config: type[Registered]) -> str | None:
    """Return the plug-in that registered a kind. If the plug-in is a package, any of its modules may have registered
    the kind. Return None if no plug-in did."""
    modules = registry.modules_of(config)
    return next((plugin for plugin in plugins for module in modules if _is_in(module, _module_name(plugin))), None)


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def resolve_and_import(plugins: tuple[str, ...]) -> tuple[str, ...]:
    """Import the plug-ins, and return their names with file names replaced by full paths. Raise UserError if a plug-in
    cannot be imported."""
    plugins = tuple(str(real_path(expand_user(p))) if is_file(p) else p for p in plugins)
    import_plugins(plugins)
    return plugins


def copies(plugins: Iterable[str], folder: Path) -> tuple[list[str], dict[str, bytes]]:
    """Return the plug-in names to write to a config in `folder`, and a dict from the names of the files to copy there
    to their contents.

    Installed modules are named but not copied. A file that is already in the folder keeps its name.
    """
    names, written = list[str](), dict[str, bytes]()
    for plugin in plugins:
        name, path = plugin, Path(plugin)
        if is_file(plugin):
            name = path.name if path.parent == real_path(folder) else f"plugin{len(written)}-{path.name}"
            written[name] = read_bytes(path)
        names.append(name)
    return names, written


def import_if_possible(plugins: Iterable[str]) -> None:
    """Import the plug-ins that raw values name, and ignore those that cannot be imported.

    Plug-ins are imported before configs are merged, because merging needs the fields of each kind. Validation later
    reports each plug-in that cannot be imported, together with all other problems.
    """
    with suppress(UserError):
        resolve_and_import(tuple(plugins))


def import_plugins(plugins: Iterable[str]) -> None:
    """Import the plug-ins that this process has not imported yet, and files that have changed since they were imported.

    Files are given by their full paths. Raise UserError before any code runs if a plug-in is missing or not trusted.
    """
    contents = {plugin: _content(Path(plugin)) if is_file(plugin) else None for plugin in plugins}
    check(contents)
    for plugin, content in contents.items():
        if content is None:
            _importing(plugin, lambda plugin=plugin: importlib.import_module(plugin))
        else:
            _importing(plugin, lambda plugin=plugin, content=content: _import_file(Path(plugin), content))


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise UserError(f"plugins: {file}: no such file; restore it, or set `plugins` to its new path")
    return read_bytes(file)


def _importing(plugin: str, import_it: Callable[[], Any]) -> None:
    try:
        import_it()
    except ContractError:
        raise
    except UserError as error:
        raise UserError(f"plugins: {plugin}: {error}") from None
    except PydanticUserError as error:
        raise UserError(f"plugins: {plugin}: {_in_words(error)}") from error
    except ModuleNotFoundError as error:
        if not _is_in(plugin, str(error.name)):
            raise UserError(f"plugins: {plugin}: imports {error.name}, which is not installed") from error
        allowed = "a module that Python finds (installed, or on PYTHONPATH), or a file that ends in .py"
        raise UserError(f"plugins: no module {plugin!r}; allowed: {allowed}") from error
    except SystemExit as error:
        hint = "put the lines that only a script needs under `if __name__ == '__main__':`"
        raise UserError(f"plugins: {plugin}: exits Python when it is imported; {hint}") from error
    except Exception as error:
        raise UserError(f"plugins: {plugin}: cannot be imported: {type(error).__name__}: {error}") from error


def _in_words(error: PydanticUserError) -> str:
    if error.code == "model-field-missing-annotation":
        field = error.message.partition("`")[2].partition("`")[0]
        return f"`{field}` has no type; write `name: int = …` for a field, and `name: ClassVar[int] = …` for a constant"
    return f"cannot be imported: {error.message}"


class _CheckedSource(SourceFileLoader):
    """Loader that runs the content that was checked, and never uses compiled code from `__pycache__`."""

    def __init__(self, name: str, file: str, content: bytes) -> None:
        super().__init__(name, file)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)


def _import_file(file: Path, content: bytes) -> None:
    name, digest = _module_name(str(file)), digest_of(file)
    if _read.get(str(file)) == digest:
        return
    if neighbors := local_imports(file):
        why = "but a run copies only the file itself"
        allowed = "all code in one file, or in an installed package whose module `plugins` names"
        raise UserError(f"imports {neighbors[0]} from its own folder, {why}; allowed: {allowed}")
    registry.forget(name)
    spec = spec_from_file_location(name, file, loader=_CheckedSource(name, str(file), content))
    assert spec
    assert spec.loader
    OWN_CODE.add(str(file))
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        registry.check_implemented(name)
    except BaseException:
        registry.forget(name)
        sys.modules.pop(name, None)
        raise
    _read[str(file)] = digest


def _module_name(plugin: str) -> str:
    if not is_file(plugin):
        return plugin
    return f"archlab_plugin_{Path(plugin).stem}_{hashlib.sha256(plugin.encode()).hexdigest()[:8]}"


PlugIns = Annotated[tuple[FileName, ...], Field(strict=False), AfterValidator(resolve_and_import)]
"""Modules, or files whose names end in .py. A file is looked for in the folder of the config that names it, then in the
working folder."""
