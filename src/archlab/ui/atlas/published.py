"""Published models, from which all screens about them are made."""

from functools import cache

from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow, entries, row
from archlab.config.schema import Config


@cache
def published() -> dict[str, tuple[AtlasRow, Config]]:
    """Return the row and the config of each published model by name of its preset, sorted by year."""
    return {entry.preset: (row(entry), entry.config) for entry in entries()}


@cache
def published_rows() -> list[AtlasRow]:
    """Return the rows of all published models, sorted by year."""
    return [row for row, _ in published().values()]


@cache
def config_axes() -> list[str]:
    """Return the fields of the config in which published models differ."""
    found: dict[str, set[Value]] = {}
    for model in published_rows():
        for field, value in model.config_fields.items():
            found.setdefault(field, set()).add(value)
    return [field for field, values in found.items() if len(values - {None}) > 1]
