"""Config of the user among published models, which the chart shows as a star."""

import re
from pathlib import Path
from typing import NamedTuple

from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow, PublishedModel, row
from archlab.atlas.select import ABOUT, value_of
from archlab.config.about import About
from archlab.ui.atlas.published import published
from archlab.ui.configs import Variant, load, overrides_in, path_below

_CHANGES = re.compile(r"\s+(?=(?:model|train)\.[\w.]+=)")
"""Space between a config and a field that it changes. Values of fields may contain spaces."""


class UserConfig(NamedTuple):
    """Config of the user."""

    text: str
    row: AtlasRow
    is_published: bool

    def value(self, field: str) -> Value:
        return value_of(self.row, field) if self.is_published or field not in ABOUT else None


def user_config(text: str, root: Path) -> UserConfig:
    """Return the row of the user's config. A config of the user has no published facts, such as a year."""
    name, *changes = _CHANGES.split(text.strip())
    if not changes and name in published() and path_below(name, root) is None:
        return UserConfig(text, published()[name][0], True)
    fields = overrides_in((field, value) for field, _, value in (change.partition("=") for change in changes))
    shape = load(Variant(name, fields), root)
    about = About(
        name=text, year=2017, source=(name,), certainty="verified", cannot_build=shape.part or None
    )  # its year and its sources are never shown
    return UserConfig(text, row(PublishedModel(text, about, shape.config)), False)
