"""The published architectures: what is known of each, and its config."""

import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from archlab.config.about import About
from archlab.config.io import build_config, facts, presets, read_entry
from archlab.config.schema import Config

_SIZE = re.compile(r"-((\d+x)?a?\d+(\.\d+)?[bm]|mini|small|medium|base|large|xl|xxl|air|lite|maverick|scout)\b.*")
"""In a preset's name: its size, and what stands behind it."""


@dataclass(frozen=True)
class Entry:
    """One model of the atlas."""

    preset: str
    """What `archlab show` calls it."""
    about: About
    config: Config
    """The model; of one that cannot be built, its decoder block as far as the schema goes."""

    @property
    def family(self) -> str:
        """What its makers released together in several sizes: the preset's name up to the size."""
        return _SIZE.sub("", self.preset)


def entries() -> list[Entry]:
    """All of them by year, then by family, version and size."""
    found = [_entry(name, file) for name, file in {**presets(), **facts()}.items()]
    return sorted(filter(None, found), key=lambda entry: (entry.about.year, _natural(entry.preset)))


def _entry(name: str, file: Traversable) -> Entry | None:
    """None for a preset of our own, which says nothing about a publication."""
    about, raw = read_entry(file)
    return Entry(name, about, build_config(raw, (), str(file))) if about else None


def _natural(name: str) -> list[tuple[float, str]]:
    """Numbers in a name compare as numbers: 8b before 70b."""
    return [(float(number or 0), word) for number, word in re.findall(r"(\d+\.?\d*)|([^\d]+)", name)]
