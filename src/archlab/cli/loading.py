"""The CONFIG and overrides that several verbs take."""

from collections.abc import Sequence

from archlab.config.core.text import note
from archlab.config.io import build_config
from archlab.config.notes import notes
from archlab.config.schema import Config
from archlab.exchange.configs import read_facts, read_named_config


def load_and_notes(config: str, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """The config, as `archlab.load_config` returns it, and what a person should know about it."""
    raw = read_named_config(config)
    loaded = build_config(raw, overrides, config)
    return loaded, notes(raw, overrides, loaded)


def load_with_notes(config: str, overrides: Sequence[str]) -> Config:
    """Load as `archlab.load_config` does, and print notes on the config to stderr."""
    loaded, found = load_and_notes(config, overrides)
    for text in found:
        note(text)
    return loaded


def load_several(config: str, more: Sequence[str]) -> dict[str, Config]:
    """Name -> config, of the first one and of `more`, in which overrides for all of them stand too."""
    overrides = [text for text in more if "=" in text]
    names = [config, *(text for text in more if "=" not in text)]
    return {name: load_with_notes(name, overrides) for name in names}


def load_shape(config: str, overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the config, as `load_with_notes` does, and an empty string. Of a model of the atlas that cannot be built,
    return the part that is known, and words that say which part it is; a verb shows them before anything else."""
    known = read_facts(config)
    if known is None:
        return load_with_notes(config, overrides), ""
    about, raw = known
    return build_config(raw, overrides, config), about.part
