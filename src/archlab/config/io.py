"""The files that come with archlab, one config file, and the config that raw values and dotted overrides make."""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import accumulate
from pathlib import Path

from pydantic import BaseModel

from archlab.config.about import About
from archlab.config.beside import find_plugins, find_text, plugins_of
from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand, merge
from archlab.config.core.plugins import import_if_possible
from archlab.config.core.trust import accept, accept_from
from archlab.config.core.yaml_text import parse_yaml, read_yaml
from archlab.config.problems import Problem
from archlab.config.schema import Config
from archlab.digests import DIGESTS
from archlab.errors import UserError


def presets() -> dict[str, Traversable]:
    """Preset name -> its file, sorted by name."""
    return _yaml_files("presets")


def facts() -> dict[str, Traversable]:
    """Name of a published model that archlab cannot build -> its file in the atlas, sorted by name."""
    return _yaml_files("facts")


def studies() -> dict[str, Traversable]:
    """Name of a study that comes with archlab -> its file, sorted by name."""
    return _yaml_files("studies")


def devices() -> dict[str, Traversable]:
    """Name of a device that models run on -> its file, sorted by name."""
    return _yaml_files("devices")


def _yaml_files(folder: str) -> dict[str, Traversable]:
    """Name -> YAML file of a folder in `archlab/library`, sorted by name."""
    files = (resources.files("archlab") / "library" / folder).iterdir()
    return dict(sorted((f.name.removesuffix(".yaml"), f) for f in files if f.name.endswith(".yaml")))


def find_preset(name: str) -> Traversable | None:
    """The file in the atlas of that name, or of the only name that begins so: `phi-4` is `phi-4-14b`."""
    return find_named(name, {**presets(), **facts()})


def find_named(name: str, files: Mapping[str, Traversable]) -> Traversable | None:
    """Of files by name, the one of that name, or of the only name that begins so, by whole words.

    Case, dots, dashes and underscores do not matter.
    """
    exact = [file for known, file in files.items() if _plain(known) == _plain(name)]
    begun = [file for known, file in files.items() if begins(known, name)]
    return exact[0] if exact else begun[0] if len(begun) == 1 else None


def begins(name: str, beginning: str) -> bool:
    """Whether a name begins so, by whole words; case, dots, dashes and underscores do not matter."""
    return _plain(beginning) in accumulate(_words(name))


def _words(name: str) -> list[str]:
    return re.split(r"[-._ ]+", name.lower().replace("+", " plus"))


def _plain(name: str) -> str:
    return "".join(_words(name))


def read_entry(file: Path | Traversable) -> tuple[About | None, Raw]:
    """What a config file says about itself, if anything, and its raw values."""
    raw = expand(read_yaml(file))
    # A run's own config says where its text lay from the folder where it was trained.
    if isinstance(file, Path) and not (file.parent / DIGESTS).is_file():
        find_text(raw, file.parent)
    if isinstance(file, Path):
        find_plugins(raw, file.parent)
        accept_from(file, plugins_of(raw))
        import_if_possible(plugins_of(raw))
    about = raw.pop("about", None)
    if about is not None and not isinstance(about, dict):
        raise UserError(f"{file}: about is {about!r}; allowed: keys and values")
    return validate(About, about, f"{file}, about") if about else None, raw


def build_config(raw: Raw, overrides: Sequence[str] = (), source: str = "config") -> Config:
    """The validated config of raw values and overrides; UserError with every problem at once."""
    change, problems = parse_overrides(overrides)
    accept(*plugins_of(change))
    import_if_possible([*plugins_of(raw), *plugins_of(change)])
    return validate(Config, overlay(raw, change, Config) if change else raw, source, problems)


def overlay(raw: Raw, change: Raw, schema: type[BaseModel]) -> Raw:
    """Dotted changes laid over raw values."""
    return merge(merge({}, raw, schema), expand(change), schema)


def parse_overrides(overrides: Sequence[str]) -> tuple[Raw, list[Problem]]:
    """`["a.b=1"]` -> `{"a.b": 1}`, and those that cannot be read; values are YAML; the last of two equal keys holds."""
    parsed: Raw = {}
    problems: list[Problem] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            problems.append(Problem(text, "expected key=value, such as model.norm.kind=layernorm"))
            continue
        try:
            parsed[key.strip()] = parse_yaml(value, "value")
        except UserError as error:
            problems.append(Problem(text, str(error)))
    return parsed, problems
