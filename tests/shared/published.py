"""The atlas's entries, made once for all files of tests that read them."""

from archlab.atlas.models import entries

ENTRIES = {entry.preset: entry for entry in entries()}
