"""The page that fragments write on: constants by name, definitions by name, each once.

A fragment asks for a constant or a definition and gets the name to use. Layers that agree share one; where they do not,
each kind of layer gets its own, with the kind in its name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 88
"""Columns: ruff's and black's default."""

NAME = "<name>"
"""In a definition's text, where its own name goes."""


@dataclass
class Page:
    """What has been written so far."""

    several: bool
    """Whether layers differ, so that a clash is between kinds of layers."""
    clashes: set[str] = field(default_factory=set)
    """Names for which more than one thing was asked; known from a first, trial page."""
    constants: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> value as text, comment."""
    definitions: dict[str, str] = field(default_factory=dict)
    """Name -> function or class, in the order in which they can stand."""
    _taken: dict[tuple[str, str], str] = field(default_factory=dict)

    def constant(self, kind: str, name: str, value: int | float | str, comment: str = "") -> str:
        """The name under which `value` stands at the top; a string is text as it is."""
        text = value if isinstance(value, str) else number(value)
        used = self._name(kind, name, text, f"{name}_{kind}".upper())
        self.constants.setdefault(used, (text, comment))
        return used

    def define(self, kind: str, name: str, text: str) -> str:
        """The name under which a function or class stands; `text` has <name> where its name goes."""
        prefixed = camel(kind) + name if name[0].isupper() else f"{kind}_{name}"
        used = self._name(kind, name, text, prefixed)
        self.definitions.setdefault(used, text.replace(NAME, used))
        return used

    def _name(self, kind: str, name: str, text: str, prefixed: str) -> str:
        if (name, text) in self._taken:
            return self._taken[name, text]
        taken = {used for (base, _), used in self._taken.items() if base == name}
        if taken:
            self.clashes.add(name)
        used = prefixed if taken or (self.several and name in self.clashes) else name
        while used in taken:
            used += "2" if used[-1].islower() else "_2"
        self._taken[name, text] = used
        return used


def camel(name: str) -> str:
    """long_local -> LongLocal."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def number(value: int | float) -> str:
    """128256 -> 128_256; 1e-05 -> 1e-5."""
    grouped = "_" if value >= 10_000 else ""
    text = f"{value:{grouped}}" if isinstance(value, int) else repr(value)
    if isinstance(value, float) and value.is_integer() and value < 1e16:
        text = f"{value:{grouped}.1f}"
    return re.sub(r"e([+-]?)0*(\d)", r"e\1\2", text).replace("e+", "e")


def lines(*parts: str | Sequence[str] | None) -> str:
    """Parts one below the other; None is left out."""
    flat: list[str] = []
    for part in parts:
        flat += [] if part is None else [part] if isinstance(part, str) else part
    return "\n".join(flat)
