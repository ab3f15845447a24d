"""Plug-ins: modules of the user's own, and what they have registered.

A config names the modules (`plugins`). Reading it imports them, in every process that is given the config.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from archlab.code import imported_from_beside, meaning
from archlab.config.components.component import Component
from archlab.config.core.base import Base
from archlab.config.core.text import FileName
from archlab.config.core.trust import check, is_file
from archlab.errors import OWN_CODE, UserError
from archlab.files import expand_user, read_bytes, read_text, real_path

Section = Literal["mlp", "mixer", "optimizer", "outcome"]
"""What a plug-in can be."""


class Options(Base):
    """The fields of a plug-in: each has a type, and a default or none. A subclass says which."""


@dataclass(frozen=True)
class Registered:
    """What a module has registered under a name."""

    section: Section
    name: str
    options: type[Base]
    make: Callable[..., Any]
    """The module's class, the optimiser's factory, or the function that measures."""
    module: str
    """In which it was registered, as Python knows it."""
    digest: str
    """12 hex digits of that module's code, without comments and layout."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Of an outcome: title, unit, better."""


_registered: dict[tuple[Section, str], dict[str, Registered]] = {}
"""By module. Several may have registered the same: a file, and its copy in a run's folder."""

_read: dict[str, str] = {}
"""File -> digest of what was imported of it."""


def register_mlp(name: str, options: type[Component], module: Callable[..., Any]) -> None:
    """Let configs say `model.mlp: {kind: plugin, name: NAME, options: {…}}`.

    `options` prices what `module(options, site)` makes, a torch module [B, T, D] -> [B, T, D]. See docs/plugins.md.
    """
    _register_component("mlp", name, options, module, ("parameters", "work"))


def register_mixer(name: str, options: type[Component], module: Callable[..., Any]) -> None:
    """As `register_mlp`, of `model.mixer`. It also says what it keeps between passes, by `state`."""
    _register_component("mixer", name, options, module, ("parameters", "work", "state"))


def register_optimizer(name: str, options: type[Options], factory: Callable[..., Any]) -> None:
    """Let configs say `train.optimizer: {kind: plugin, name: NAME, options: {…}}`.

    `factory(groups, options)` gives a torch optimiser. See docs/plugins.md for the groups.
    """
    register("optimizer", name, options, factory)


def find(section: Section, name: str) -> Registered | None:
    """What is registered under that name."""
    return next(iter(_registered.get((section, name), {}).values()), None)


def names(section: Section) -> list[str]:
    """All that are registered."""
    return sorted(name for where, name in _registered if where == section)


def registered_by(plugins: Iterable[str], section: Section, name: str) -> str | None:
    """Which of these plug-ins has registered it, or a module of that package."""
    modules = _registered.get((section, name), {})
    return next((plugin for plugin in plugins for module in modules if _is_in(module, _module_name(plugin))), None)


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _register_component(
    section: Section, name: str, options: type[Component], module: Callable[..., Any], said: tuple[str, ...]
) -> None:
    if not (isinstance(options, type) and issubclass(options, Component)):
        raise UserError(f"{section} {name}: its options are {options!r}; allowed: a subclass of archlab.Component")
    if missing := [method for method in said if getattr(options, method) is getattr(Component, method)]:
        raise UserError(
            f"{section} {name}: {options.__name__} has no `{missing[0]}`, so nothing is known of its costs; "
            f"needed: {', '.join(said)} (docs/plugins.md)"
        )
    register(section, name, options, module)


def register(section: Section, name: str, options: type[Base], make: Callable[..., Any], **about: Any) -> None:
    """Keep what the calling module brings; UserError where another module brought something else of that name."""
    if not (isinstance(options, type) and issubclass(options, Base)):
        raise UserError(f"{section} {name}: its options are {options!r}; allowed: a subclass of archlab.Options")
    caller = sys._getframe()
    while caller.f_globals["__name__"].startswith("archlab.") and caller.f_back:
        caller = caller.f_back
    module, file = caller.f_globals["__name__"], caller.f_globals.get("__file__")
    if file is None:
        raise UserError(f"{section} {name}: registered outside of a file; a plug-in is a file that `plugins` names")
    digest = digest_of(Path(file))
    found = Registered(section, name, options, make, module, digest, about)
    known = _registered.setdefault((section, name), {})
    for other in known.values():
        if other.module != module and other.digest != digest:
            where = sys.modules[other.module].__file__
            raise UserError(
                f"{section} {name} is registered by {where} and by {file}, whose code differs; rename one of them, or "
                "use them in a Python of their own each"
            )
    known[module] = found
    OWN_CODE.add(file)


def digest_of(file: Path) -> str:
    """12 hex digits that change with what a file of Python does, and not with how it is written."""
    return hashlib.sha256(meaning(read_text(file)).encode()).hexdigest()[:12]


def _loaded(plugins: tuple[str, ...]) -> tuple[str, ...]:
    """The same with full paths of files, all of them imported; UserError for one that cannot be."""
    plugins = tuple(str(real_path(expand_user(p))) if is_file(p) else p for p in plugins)
    load_plugins(plugins)
    return plugins


def copies(plugins: Iterable[str], folder: Path) -> tuple[list[str], dict[str, bytes]]:
    """What names the plug-ins in a folder that holds copies of them, and the copies to write there; a module that
    Python finds by itself is only named, and a file of that folder stays what it is."""
    names, written = list[str](), dict[str, bytes]()
    for plugin in plugins:
        name, path = plugin, Path(plugin)
        if is_file(plugin):
            name = path.name if path.parent == real_path(folder) else f"plugin{len(written)}-{path.name}"
            written[name] = read_bytes(path)
        names.append(name)
    return names, written


def load_plugins(plugins: Iterable[str]) -> None:
    """Import the plug-ins that this process has not imported, and files that have changed since.

    Files are given by their full paths. Raise UserError before any code runs if one is missing or not trusted.
    """
    found = {plugin: _content(Path(plugin)) if is_file(plugin) else None for plugin in plugins}
    check(found)
    for plugin, content in found.items():
        if content is None:
            _importing(plugin, lambda plugin=plugin: importlib.import_module(plugin))
        else:
            _importing(plugin, lambda plugin=plugin, content=content: _import_file(Path(plugin), content))


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise UserError(f"plugins: {file}: no such file; put it there, or name the place where it is now")
    return read_bytes(file)


def _importing(plugin: str, import_it: Callable[[], Any]) -> None:
    try:
        import_it()
    except UserError as error:
        raise UserError(f"plugins: {plugin}: {error}") from None
    except ModuleNotFoundError as error:
        if not _is_in(plugin, str(error.name)):
            raise UserError(f"plugins: {plugin}: imports {error.name}, which is not there") from error
        allowed = "a module that Python finds (installed, or on PYTHONPATH), or a file that ends in .py"
        raise UserError(f"plugins: no module {plugin!r}; allowed: {allowed}") from error
    except SystemExit as error:
        hint = "put the lines that only a script needs under `if __name__ == '__main__':`"
        raise UserError(f"plugins: {plugin}: ends Python when it is imported; {hint}") from error
    except Exception as error:
        raise UserError(f"plugins: {plugin}: cannot be imported: {type(error).__name__}: {error}") from error


class _CheckedSource(SourceFileLoader):
    """Runs the content that was checked, and never the compiled code that `__pycache__` may hold in its place."""

    def __init__(self, name: str, file: str, content: bytes) -> None:
        super().__init__(name, file)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        """Compile the content."""
        return self.source_to_code(self._content, self.path)


def _import_file(file: Path, content: bytes) -> None:
    name, digest = _module_name(str(file)), digest_of(file)
    if _read.get(str(file)) == digest:
        return
    if beside := imported_from_beside(file):
        why = "and a run keeps a copy of the file alone"
        allowed = "all in the one file, or in an installed package, whose module `plugins` names"
        raise UserError(f"imports {beside[0]} from its own folder, {why}; allowed: {allowed}")
    for modules in _registered.values():
        modules.pop(name, None)
    spec = spec_from_file_location(name, file, loader=_CheckedSource(name, str(file), content))
    assert spec
    assert spec.loader
    OWN_CODE.add(str(file))
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    _read[str(file)] = digest


def _module_name(plugin: str) -> str:
    """As Python knows it: of a file one that no other module has."""
    if not is_file(plugin):
        return plugin
    return f"archlab_plugin_{Path(plugin).stem}_{hashlib.sha256(plugin.encode()).hexdigest()[:8]}"


PlugIns = Annotated[tuple[FileName, ...], Field(strict=False), AfterValidator(_loaded)]
"""Modules, or files that end in .py: beside the file that names them, or where the command is run."""
