"""The CONFIG and overrides that several verbs take."""

from collections.abc import Sequence

from archlab.config.io import build_config
from archlab.config.notes import notes
from archlab.config.schema import Config
from archlab.config.text import note
from archlab.exchange.configs import read_config


def load_with_notes(config: str, overrides: Sequence[str]) -> Config:
    """As `archlab.load_config`; what a person should know about the config is printed to stderr."""
    raw = read_config(config)
    loaded = build_config(raw, overrides, config)
    for text in notes(raw, overrides, loaded):
        note(text)
    return loaded
