"""Atlas of published models: charts and a table that filter each other."""

from dataclasses import dataclass
from pathlib import Path

from archlab.atlas.adoption import CHOICES
from archlab.atlas.models import AtlasRow
from archlab.ui.atlas.bars import Panel, Year, adoption_panel, models_per_year
from archlab.ui.atlas.published import published_rows
from archlab.ui.atlas.scatter import Scatter, scatter_chart
from archlab.ui.atlas.star import UserConfig, user_config
from archlab.ui.atlas.view import ModelsView, chosen_models, is_about


@dataclass(frozen=True)
class ModelsScreen:
    """Everything that the screen shows."""

    view: ModelsView
    chosen: list[AtlasRow]
    total: int
    years: list[Year]
    panels: list[Panel]
    scatter: Scatter
    mine: UserConfig | None

    @property
    def max_per_year(self) -> int:
        """Largest number of models in a year."""
        return max(year.total for year in self.years)


def models_screen(view: ModelsView, root: Path) -> ModelsScreen:
    """Return the screen of a view. Raise UserError if a condition is not valid, or if no model meets all of them."""
    chosen = chosen_models(view)
    mine = user_config(view.mine, root) if view.mine else None
    years = {
        row.about.year for row in chosen_models(ModelsView(tuple(t for t in view.conditions if is_about(t, "year"))))
    }
    panels = [adoption_panel(view, choice, years, mine) for choice in CHOICES]
    colors = next(panel for panel in panels if panel.choice.field == view.color)
    chart = scatter_chart(view, chosen, colors, mine)
    return ModelsScreen(view, chosen, len(published_rows()), models_per_year(view, years), panels, chart, mine)
