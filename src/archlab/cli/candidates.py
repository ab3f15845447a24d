"""Values that the shell offers for the argument under the cursor: configs, fields and their values, and names.

Cyclopts calls these functions while the user presses Tab, and removes the values that do not begin with the typed text.
A shell adds a space after the only value. To avoid the space after `model.norm.` or `runs/`, which the user continues
to type, the functions then also return what comes next.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from cyclopts.completion import CompletionContext

Candidates = dict[str, str]
"""Map each value to its description, which zsh and fish show."""

_FILES = (".yaml", ".yml", ".json", ".gguf", ".py")
"""Endings of files that an argument can name."""


def paths(context: CompletionContext) -> Candidates:
    """Return folders, and files whose name has one of the endings in _FILES."""
    found = _below(context.incomplete)
    if len(found) == 1 and found[0].endswith("/"):
        found += _below(found[0])
    return dict.fromkeys(found, "")


def configs(context: CompletionContext) -> Candidates:
    """Return the names of presets, and paths."""
    from archlab.config.io import presets

    return {**dict.fromkeys(presets(), ""), **paths(context)}


def overrides(context: CompletionContext) -> Candidates:
    """Return fields of a config, or the values of the field that the user has typed."""
    return _settings(context, [""])


def overrides_of_two(context: CompletionContext) -> Candidates:
    """Return fields of the two configs of `archlab diff`, as in a.model.n_layers."""
    return _settings(context, ["a.", "b."])


def configs_and_overrides(context: CompletionContext) -> Candidates:
    """Return configs, or fields and their values."""
    fields = overrides(context)
    return fields if "=" in context.incomplete else {**configs(context), **fields}


def studies(context: CompletionContext) -> Candidates:
    """Return the names of studies, and paths."""
    from archlab.config import io

    return {**dict.fromkeys(io.studies(), ""), **paths(context)}


def devices(context: CompletionContext) -> Candidates:
    """Return the names of hardware devices, and paths."""
    from archlab.config import io

    return {**dict.fromkeys(io.devices(), ""), **paths(context)}


def topics(_: CompletionContext) -> Candidates:
    """Return the topics of `archlab explain`, with their titles."""
    from archlab.evidence.topics import topics as explained

    return {name: topic.title for name, topic in explained()}


def extras(_: CompletionContext) -> Candidates:
    """Return the extras of archlab, with the features that need them."""
    from archlab.extras import EXTRAS

    return dict(EXTRAS)


def claims(_: CompletionContext) -> Candidates:
    """Return the numbers of the claims of `archlab ledger`, with their texts."""
    from archlab.evidence.claims import claims as published

    return {str(number): claim.name for number, claim in published().items()}


def _below(begun: str) -> list[str]:
    """Return the paths of files and folders that begin with a text. The path of a folder ends with a slash."""
    folder, slash, name = begun.rpartition("/")
    found = []
    with suppress(OSError, RuntimeError):  # an unreadable folder; ~user of an unknown user
        for path in sorted(Path(folder + slash).expanduser().iterdir()):
            if path.name.startswith(name) and (name.startswith(".") or not path.name.startswith(".")):
                if path.is_dir():
                    found.append(f"{folder}{slash}{path.name}/")
                elif path.suffix in _FILES:
                    found.append(f"{folder}{slash}{path.name}")
    return found


def _settings(context: CompletionContext, sides: Iterable[str]) -> Candidates:
    """Return fields, each with one of the prefixes in `sides`, or values.

    Bash splits the typed text at each `=`. The field is then one of the words before the cursor.
    """
    from archlab.evidence.field_help import field_help

    fields = {f"{side}{path}": help_ for side in sides for path, help_ in field_help().items()}

    def values(path: str) -> Candidates:
        if path not in fields:
            return {}
        readings = fields[path].readings
        words = {"true": "", "false": ""} if any("true or false" in reading.allowed for reading in readings) else {}
        defaults = {reading.default: "the default" for reading in readings if reading.default}
        return {**defaults, **words, **fields[path].values}

    words = [token.value for token in context.argument.tokens]
    if context.incomplete == "=" and words:
        return values(words[-1])
    if len(words) > 1 and words[-1] == "=":
        return values(words[-2])
    path, equals, _ = context.incomplete.partition("=")
    if equals:
        return {f"{path}={value}": text for value, text in values(path).items()}
    leaves = {name: help_.readings[0].text.partition(". ")[0] for name, help_ in fields.items() if not help_.is_section}
    found = _next_parts({name: text for name, text in leaves.items() if ".NAME." not in name}, path)
    if len(found) == 1:
        (only,) = found
        found |= {f"{only}{value}": text for value, text in values(only.removesuffix("=")).items()}
    return found


def _next_parts(names: Mapping[str, str], begun: str) -> Candidates:
    """Return dotted names that begin with a text, each shortened after the next dot.

    If all of them are one section, return the parts of that section.
    """
    while True:
        parts: Candidates = {}
        for name, text in names.items():
            if name.startswith(begun):
                dot = name.find(".", len(begun))
                parts.setdefault(f"{name}=" if dot < 0 else name[: dot + 1], text if dot < 0 else "")
        if len(parts) != 1 or not next(iter(parts)).endswith("."):
            return parts
        (begun,) = parts
