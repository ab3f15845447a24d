"""List of the presets: published architectures, and archlab's own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from archlab.atlas.models import AtlasRow, rows, unpublished
from archlab.atlas.select import FIELDS, select, value_of
from archlab.config.about import About
from archlab.config.core.yaml_text import first_comment
from archlab.config.io import presets
from archlab.displayed import Displayed, Library, as_frame


@dataclass(frozen=True, repr=False)
class Presets(Displayed):
    """Published architectures, and archlab's own presets."""

    published: list[AtlasRow]
    """Published architectures that meet all conditions. archlab can build those that are `buildable`."""
    unpublished: dict[str, About]
    """Facts about well-known models whose architecture is not published, by name. Empty if there are conditions."""
    own: dict[str, str]
    """archlab's own presets, with a description. Empty if there are conditions."""
    conditions: tuple[str, ...]
    """Conditions that the published architectures meet."""
    sort: str | None
    """Field by which they are sorted. None means by year."""

    def __len__(self) -> int:
        """Return the number of published architectures."""
        return len(self.published)

    def __iter__(self) -> Iterator[AtlasRow]:
        return iter(self.published)

    def __getitem__(self, index: int) -> AtlasRow:
        return self.published[index]

    def frame(self, library: Library | None = None) -> Any:
        """Return one row per published architecture, with the fields that conditions can name.

        `library` is `pandas` or `polars`, for a data frame. None returns a list of dicts. Raise UserError if the
        library is not installed.
        """
        return as_frame([{field: value_of(row, field) for field in FIELDS} for row in self.published], library)


def list_presets(*conditions: str, sort: str | None = None) -> Presets:
    """Return the published architectures that meet all conditions, and archlab's own presets.

    - `conditions`: conditions such as `family=llama`, `year>=2024`, `d_ff_over_d>4` or
      `model.attention.n_kv_heads<8`. The value `null` means unknown. Other unknown values do not match.
    - `sort`: field to sort by, such as `d_ff_over_d`. With `-size`, the largest come first. None means by year.

    Raise UserError if a condition cannot be parsed, a field does not exist, or no architecture meets the conditions.

    >>> presets = archlab.list_presets("family=llama", "year=2023", sort="size")
    >>> [(row["preset"], row["n_layers"]) for row in presets.frame()][:2]
    [('llama-2-7b', 32), ('llama-7b', 32)]
    >>> len(presets) == len([row.preset for row in presets])
    True
    """
    models = rows()
    selected = select(models, conditions, sort)
    if conditions:
        return Presets(selected, {}, {}, conditions, sort)
    published = {row.preset for row in models}
    own = {name: first_comment(file) for name, file in presets().items() if name not in published}
    return Presets(selected, unpublished(), own, conditions, sort)
