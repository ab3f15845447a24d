"""The CONFIG and overrides that several verbs take."""

import sys
from collections.abc import Sequence

from archlab.config.io import build_config, read_config
from archlab.config.notes import notes
from archlab.config.schema import Config


def load_with_notes(config: str, overrides: Sequence[str]) -> Config:
    """As `archlab.load_config`, with what a person should know of it on stderr."""
    raw = read_config(config)
    loaded = build_config(raw, overrides, config)
    for note in notes(raw, overrides):
        print(f"note: {note}", file=sys.stderr)
    return loaded
