"""Reading of config files and overrides. A config is a file in archlab's library, another file, or a mapping of raw
values."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from archlab.config.about import About
from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand, merge
from archlab.config.core.plain import plain_values
from archlab.config.core.plugins import import_if_possible
from archlab.config.core.trust import accept, accept_from
from archlab.config.core.yaml_text import parse_yaml, read_yaml
from archlab.config.paths import plugins_of, resolve_plugin_paths, resolve_text_paths, resolve_weight_paths
from archlab.config.problems import Problem
from archlab.config.schema import Config
from archlab.digests import DIGESTS
from archlab.errors import UserError


def presets() -> Mapping[str, Traversable]:
    """Return the config files of the presets, by name in alphabetical order."""
    return _yaml_files("presets")


def facts() -> Mapping[str, Traversable]:
    """Return the files of published models that archlab cannot build, by name in alphabetical order."""
    return _yaml_files("facts")


def studies() -> Mapping[str, Traversable]:
    return _yaml_files("studies")


def devices() -> Mapping[str, Traversable]:
    """Return the files that describe hardware devices, by name in alphabetical order."""
    return _yaml_files("devices")


@cache
def _yaml_files(folder: str) -> Mapping[str, Traversable]:
    files = (resources.files("archlab") / "library" / folder).iterdir()
    return dict(sorted((f.name.removesuffix(".yaml"), f) for f in files if f.name.endswith(".yaml")))


@lru_cache(maxsize=1024)
def find_preset(name: str) -> Traversable | None:
    """Return the preset or atlas file called `name`. Otherwise return the only file whose name begins with `name`:
    `phi-4` finds `phi-4-14b`. Return None if no file or several files match.

    If one preset and several atlas files begin with `name`, return the preset: `palm` finds `palm-540b` instead of the
    facts about PaLM 2.
    """
    everything = {**presets(), **facts()}
    exact = next((file for known, file in everything.items() if _plain(known) == _plain(name)), None)
    return exact or find_named(name, presets()) or find_named(name, everything)


def is_full_name(name: str) -> bool:
    """Return whether this is the full name of a preset or an atlas file, such as `llama-3-8b`."""
    return name in presets() or name in facts()


def find_named(name: str, files: Mapping[str, Traversable]) -> Traversable | None:
    """Return the file called `name`. Otherwise return the only file whose name begins with the words of `name`, or None
    if no file or several files match.

    Case, dots, dashes and underscores do not matter.
    """
    exact = [file for known, file in files.items() if _plain(known) == _plain(name)]
    matches = [file for known, file in files.items() if begins(known, name)]
    return exact[0] if exact else matches[0] if len(matches) == 1 else None


def all_that_begin(beginning: str) -> list[str]:
    """Return the names of all presets and atlas files that begin with the words of `beginning`."""
    return [name for name in {**presets(), **facts()} if begins(name, beginning)]


def with_most_words(text: str) -> list[str]:
    """Return the names of the presets and atlas files that share the most words with `text`, and at least one."""
    wanted = {*words_of(text)}
    n_shared = {name: len(wanted & {*words_of(name)}) for name in {**presets(), **facts()}}
    return [name for name, n in n_shared.items() if n == max(n_shared.values()) > 0]


def begins(name: str, beginning: str) -> bool:
    """Return whether a name begins with the words of `beginning`. `phi-4-14b` begins with `phi-4`, but not with
    `phi-4-1`. Case, dots, dashes and underscores do not matter."""
    return _plain(beginning) in accumulate(words_of(name))


def words_of(name: str) -> list[str]:
    """Return the words of a name in lowercase. Each `+` is the word plus: `Command R+` is `command-r-plus`."""
    return re.split(r"[-._ ]+", name.lower().replace("+", " plus"))


def _plain(name: str) -> str:
    return "".join(words_of(name))


def read_entry(file: Path | Traversable) -> tuple[About | None, Raw]:
    """Return the `about` section of a config file, or None if it has none, and the other raw values of the file."""
    if file not in _library_entries():
        return _read_entry(file)
    about, raw = _library_entry(file)
    return about, deepcopy(raw)


@cache
def _library_entries() -> frozenset[Path | Traversable]:
    return frozenset((*presets().values(), *facts().values()))


@cache
def _library_entry(file: Path | Traversable) -> tuple[About | None, Raw]:
    """Return what `read_entry` does for a file of the library, which does not change while archlab runs."""
    return _read_entry(file)


def _read_entry(file: Path | Traversable) -> tuple[About | None, Raw]:
    raw = expand(read_yaml(file))
    # Paths in a run's own config are relative to the folder where it was trained.
    if isinstance(file, Path) and not (file.parent / DIGESTS).is_file():
        resolve_text_paths(raw, file.parent)
        resolve_weight_paths(raw, file.parent)
    if isinstance(file, Path):
        resolve_plugin_paths(raw, file.parent)
        accept_from(file, plugins_of(raw))
        import_if_possible(plugins_of(raw))
    about = raw.pop("about", None)
    if about is not None and not isinstance(about, dict):
        raise UserError(f"{file}: about is {about!r}; allowed: keys and values")
    return validate(About, about, f"{file}, about") if about else None, raw


def build_config(raw: Raw, overrides: Sequence[str] = (), source: str = "config") -> Config:
    """Return the validated config of raw values and overrides such as `model.d_model=64`. Raise a UserError that lists
    all problems if there are any."""
    change, problems = parse_overrides(overrides)
    accept(*plugins_of(change))
    import_if_possible([*plugins_of(raw), *plugins_of(change)])
    return validate(Config, overlay(raw, change, Config) if change else raw, source, problems)


def overlay(raw: Raw, change: Raw, schema: type[BaseModel]) -> Raw:
    """Return raw values with `change` merged over them. Keys of `change` may be dotted."""
    return merge(merge({}, raw, schema), expand(change), schema)


def override_texts(*overrides: str | Mapping[str, Any]) -> list[str]:
    """Return overrides as strings such as `model.d_model=64`: one for each key of a mapping."""
    return [text for override in overrides for text in _texts_of(override)]


def _texts_of(override: str | Mapping[str, Any]) -> list[str]:
    if isinstance(override, str):
        return [override]
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in plain_values(override).items()]


def parse_overrides(overrides: Sequence[str]) -> tuple[Raw, list[Problem]]:
    """Return `{"a.b": 1}` for `["a.b=1"]`, and a problem for each override that cannot be read.

    Values are YAML. If a key appears twice, the last value counts.
    """
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
