"""Adoption of architectural choices: the number of model families that chose each option, year by year."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from archlab.atlas.config_fields import Value
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import condition, value_of
from archlab.atlas.words import BOTH_SIDES, NOTHING


@dataclasses.dataclass(frozen=True)
class Choice:
    """Architectural choice, for example the kind of norm."""

    field: str
    """Field of the atlas that holds the choice."""
    title: str
    names: Mapping[Value, str] = dataclasses.field(default_factory=dict, hash=False)
    """Names of those options that are called otherwise than the value of the field. Values may share a name."""
    doubted: str | None = None
    """Field of the config that holds the choice. Models whose value is only assumed are left out."""

    def of(self, row: AtlasRow) -> str:
        """Return the option of a model."""
        value = value_of(row, self.field)
        return self.names.get(value, NOTHING if value is None else str(value))

    def condition(self, option: str, rows: Sequence[AtlasRow]) -> str:
        """Return the condition that is met by the models with this option, as in `heads=GQA`."""
        values = [value for value, name in self.names.items() if name == option]
        return condition(self.field, values or [option], rows)


CHOICES = (
    Choice("norm", "Norm", doubted="norm.kind"),
    Choice("placement", "Place of the norm", doubted="norm.placement"),
    Choice("position", "Positions", {"T5": "relative", "Shaw": "relative", "TransfoXL": "relative"}, "position.kind"),
    Choice("activation", "MLP"),
    Choice("gated", "Gate in the MLP", {False: "without", True: "with"}),
    Choice("feed_forward", "Dense MLPs or mixtures of experts", {"dense+mixture": "both"}),
    Choice("mixers", "Token mixing", dict.fromkeys(["Mamba-2+attention", "attention+Mamba-2"], "Mamba-2+attention")),
    Choice("heads", "Query and KV heads"),
    Choice(
        "reach",
        "Context that the layers see",
        {
            "full": "everything earlier",
            "local": "a window",
            "local+full": "a window or everything earlier",
            f"local+{BOTH_SIDES}": "a window or both sides",
            "state": "a state",
            "state+full": "a state or everything",
        },
    ),
    Choice("biases", "Biases", {"all": "everywhere", "some": "in some places"}),
    Choice("block", "Attention and MLP"),
    Choice("tied", "Embedding and head", {True: "tied", False: "untied"}),
)


def kinds(rows: Sequence[AtlasRow], choice: Choice) -> dict[str, int]:
    """Map each option to the number of families that chose it for at least one model size. The options are in order of
    appearance."""
    choices = dict.fromkeys((row.family, choice.of(row)) for row in counted(rows, choice))
    return dict(Counter(kind for _, kind in choices))


def counted(rows: Sequence[AtlasRow], choice: Choice) -> list[AtlasRow]:
    """Return the models to which the choice applies, and for which the chosen option is known."""
    known = (row for row in rows if choice.doubted is None or not row.about.doubts(choice.doubted))
    return [row for row in known if choice.of(row) != NOTHING]


class Adoption(NamedTuple):
    """Number of families that chose an option in a year."""

    year: int
    option: str
    n: float
    """Number of families. If the choice differs between the sizes of a family, each size counts as a fraction."""
    total: int
    """Number of families of the year whose choice is known."""

    @property
    def share(self) -> float:
        return self.n / self.total

    @property
    def text(self) -> str:
        return f"{self.year}: {self.n:.3g} of {self.total}"


def adoption(rows: Sequence[AtlasRow], choice: Choice) -> list[Adoption]:
    """Return the adoption of each option in each year, sorted by year and option.

    A family counts once per year, no matter how many model sizes it has.
    """
    known = counted(rows, choice)
    sizes = Counter((row.about.year, row.family) for row in known)
    totals = Counter(year for year, _ in sizes)
    n_families: defaultdict[tuple[int, str], float] = defaultdict(float)
    for row in known:
        n_families[row.about.year, choice.of(row)] += 1 / sizes[row.about.year, row.family]
    return [Adoption(year, option, n, totals[year]) for (year, option), n in sorted(n_families.items())]
