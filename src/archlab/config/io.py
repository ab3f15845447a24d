"""Reading configs: presets, YAML files and run folders, with dotted overrides laid over them."""

import re
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import BaseModel

from archlab.config.check import validate
from archlab.config.identity import config_hash, diff, flatten, resolved
from archlab.config.merge import Raw, expand, merge
from archlab.config.problems import nearest
from archlab.config.schema import Config
from archlab.config.yaml_text import parse_yaml, read_yaml, to_yaml
from archlab.errors import UserError

__all__ = [
    "build_config",
    "config_hash",
    "diff",
    "find_preset",
    "flatten",
    "load_config",
    "overlay",
    "parse_overrides",
    "parse_yaml",
    "presets",
    "read_config",
    "read_yaml",
    "resolved",
    "studies",
    "to_yaml",
    "validate",
]


def presets() -> dict[str, Traversable]:
    """Preset name -> its file, sorted by name."""
    return _yaml_files("archlab.atlas", "presets")


def studies() -> dict[str, Traversable]:
    """Name of a study that comes with archlab -> its file, sorted by name."""
    return _yaml_files("archlab.study", "library")


def _yaml_files(package: str, folder: str) -> dict[str, Traversable]:
    home = resources.files(package) / folder
    files = home.iterdir() if home.is_dir() else iter(())
    return dict(sorted((f.name.removesuffix(".yaml"), f) for f in files if f.name.endswith(".yaml")))


def find_preset(name: str) -> Traversable | None:
    """The preset of that name; case, dots, dashes and underscores do not matter."""
    return {_plain(known): file for known, file in presets().items()}.get(_plain(name))


def _plain(name: str) -> str:
    return re.sub(r"[-._ ]", "", name).lower()


def load_config(source: str | Path, *overrides: str) -> Config:
    """A preset's name, a YAML file or a run folder, with `a.b=value` overrides laid over it.

    Raises UserError with every problem at once.
    """
    return build_config(read_config(source), overrides, str(source))


def read_config(source: str | Path) -> Raw:
    """The raw values of a preset, a YAML file or a run folder."""
    path, preset = Path(source), find_preset(str(source))
    if preset is not None and not path.exists():
        return expand(read_yaml(preset))
    if path.is_dir():
        if not (path / "config.yaml").is_file():
            raise UserError(f"{path}: a folder without config.yaml; a CONFIG is a preset, a YAML file or a run folder")
        return expand(read_yaml(path / "config.yaml"))
    if path.is_file():
        return expand(read_yaml(path))
    hint = nearest(str(source), presets()) or "; see `archlab list presets`"
    raise UserError(f"no config {str(source)!r}: neither a preset nor a file{hint}")


def build_config(raw: Raw, overrides: Sequence[str] = (), source: str = "config") -> Config:
    """The validated config of raw values and overrides; UserError with every problem at once."""
    return validate(Config, overlay(raw, parse_overrides(overrides), Config), source)


def overlay(raw: Raw, change: Raw, schema: type[BaseModel]) -> Raw:
    """Dotted changes laid over raw values."""
    return merge(merge({}, raw, schema), expand(change), schema)


def parse_overrides(overrides: Sequence[str]) -> Raw:
    """`["a.b=1"]` -> `{"a.b": 1}`; values are YAML; the last of two equal keys holds."""
    parsed: Raw = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"override {text!r}: expected key=value, such as model.norm.kind=layernorm")
        parsed[key.strip()] = parse_yaml(value, f"override {text!r}")
    return parsed
