"""View of the atlas: which models are chosen, and over which fields the chart shows them. Every view is a URL."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import quote

from archlab.atlas.adoption import CHOICES
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import fields_of, select
from archlab.config.problems import choose, nearest
from archlab.errors import UserError
from archlab.ui.atlas.axes import AXES
from archlab.ui.atlas.published import config_axes, published_rows

X, Y, COLOR = "size", "d_ff_over_d", "heads"
"""Fields of the axes and of the colors when the URL names none."""


_SETTINGS = ("x", "y", "color", "sort", "mine", "add")


@dataclass(frozen=True)
class ModelsView:
    """Settings in the URL of the screen."""

    conditions: tuple[str, ...] = ()
    """Conditions that the models must meet, as for `archlab list --filter`."""
    x: str = X
    y: str = Y
    color: str = COLOR
    sort: str = ""
    """Field by which the table is sorted, as for `archlab list --sort`. Empty: by year."""
    mine: str = ""
    """Config of the user, as in `llama-3-8b model.n_layers=16`. Empty: none."""

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> "ModelsView":
        """Read the URL. Raise UserError if a field does not exist.

        Each name in the query that is not a setting is a condition: `year>=2024` has the name `year>`.
        """
        settings, conditions = dict[str, str](), list[str]()
        for name, value in query:
            if name not in _SETTINGS:
                conditions.append(f"{name}={value}" if value else name)
            elif name == "add":
                conditions += value.split()
            elif value.strip():
                settings[name] = value.strip()
        for name, allowed in (("x", AXES), ("y", AXES), ("color", [choice.field for choice in CHOICES])):
            value = settings.get(name, allowed[0])
            if value not in allowed and (name == "color" or value not in config_axes()):
                raise UserError(f"{name} is {value!r}{nearest(value, config_axes()) or choose(value, allowed)}")
        return cls(tuple(dict.fromkeys(conditions)), **settings)

    @property
    def address(self) -> str:
        """Path and query of the screen."""
        default = ModelsView()
        names = [name for name in _SETTINGS[:-1] if getattr(self, name) != getattr(default, name)]
        settings = [f"{name}={_quoted(getattr(self, name))}" for name in names]
        query = "&".join([*map(_quoted, self.conditions), *settings])
        return f"/models{'?' if query else ''}{query}"

    @property
    def commands(self) -> list[str]:
        """Commands that print the same models, and write them as a page with the same charts."""
        chosen = ["--filter", *self.conditions] if self.conditions else []
        sort = ["--sort", self.sort] if self.sort else []
        listed = ["archlab", "list", "presets", *chosen, *sort]
        return [shlex.join(listed), shlex.join([*listed, "--html", "models.html"])]

    def toggled(self, *added: str) -> "ModelsView":
        """Return the view with these conditions instead of all others on their fields. If it has them already, return
        it without them."""
        if {*added} <= {*self.conditions}:
            return replace(self, conditions=tuple(text for text in self.conditions if text not in added))
        return replace(self, conditions=(*self.without(*fields_of(added, None)).conditions, *added))

    def without(self, *fields: str) -> "ModelsView":
        """Return the view without the conditions on these fields."""
        kept = (text for text in self.conditions if not {*fields_of([text], None)} & {*fields})
        return replace(self, conditions=tuple(kept))

    def without_all(self) -> "ModelsView":
        """Return the view without conditions."""
        return replace(self, conditions=())

    def sorted_by(self, field: str) -> "ModelsView":
        """Return the view sorted by a field. If it is already, reverse the order."""
        return replace(self, sort=f"-{field}" if self.sort == field else field)


def _quoted(text: str) -> str:
    return quote(text, safe="=|,:@/")


def chosen_models(view: ModelsView) -> list[AtlasRow]:
    """Return the models that meet the conditions of a view, in its order. Raise UserError if there are none."""
    return select(published_rows(), view.conditions, view.sort or None)


def is_about(text: str, field: str) -> bool:
    """Return whether a condition is about this field alone."""
    return fields_of([text], None) == [field]
