"""Base classes of the values that a notebook shows as a table, a picture or a chart."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from archlab.config.core.yaml_text import to_yaml_line
from archlab.errors import UserError

if TYPE_CHECKING:  # loading Altair takes a second
    import altair as alt
    from rich.console import Console

_T = TypeVar("_T")
FigureFormat = Literal["svg", "pdf", "png"]
Library = Literal["pandas", "polars"]


def report_module(module: str) -> Any:
    """Return a module of `report/notebook`.

    It is loaded by name when it is first used, like the public names of archlab. Values of all folders are shown, but
    only pages and commands depend on `report`.
    """
    return import_module(f"archlab.report.notebook.{module}")


class Displayed:
    """Value that shows itself: in a terminal like the output of a command, in a notebook like archlab's pages."""

    def __repr__(self) -> str:
        return report_module("text").text_of(self)

    __str__ = __repr__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        return report_module("html").html_of(self)


class Families(Displayed, dict[str, str]):
    """Classes of transformers, by family. Defined here because its function's module loads all families."""


class Transformations(Displayed, dict[str, dict[str, str]]):
    """Facts about changes of trained weights, by name. Defined here because its function's module loads torch."""


class Evaluations(Displayed, list[_T]):
    """Scores of models on the same held-out text. Defined here because its function's module loads torch."""


class Written(Displayed):
    """Value that writes its own text."""

    def text(self) -> str:
        """Return the text that the command about the value prints."""
        raise NotImplementedError


class Printed(Displayed):
    """Value that a function of `report` prints. The function is given by its name, because it loads torch."""

    printed_by: ClassVar[str]
    """Name of the function below `archlab.report`, such as `probe.tables.print_probes`."""

    def print_to(self, out: "Console") -> None:
        """Print the text that the command about the value prints."""
        module, _, function = self.printed_by.rpartition(".")
        getattr(import_module(f"archlab.report.{module}"), function)(out, self)


class Charted(Displayed):
    """Value with charts. The first chart is the one that a notebook shows."""

    def chart(self, name: str | None = None) -> "alt.LayerChart":
        """Return a chart, which you can restyle as any chart of Altair. It has the colors of light mode.

        `name` is the name of the chart; by default, it is the first one. Raise UserError, which lists all names, if
        the name is unknown.
        """
        return report_module("figures").chart_of(self, name)

    def figure(self, format: FigureFormat = "svg", name: str | None = None) -> bytes:
        """Return a chart as the content of a file: `svg`, `pdf` or `png`. A PDF contains its fonts. No browser is
        needed.

        `name` has the same meaning as for `chart`.
        """
        return report_module("figures").figure_of(self, format, name)


def as_frame(rows: Sequence[dict[str, Any]], library: Library | None) -> Any:
    """Return rows as a frame of pandas or polars, in which a dict becomes text. None returns the rows themselves.

    Raise UserError if the library is unknown or not installed.
    """
    if library is None:
        return [*rows]
    if library not in ("pandas", "polars"):
        raise UserError(f"library: {library!r}; allowed: pandas, polars, or None for a list of rows")
    try:
        return import_module(library).DataFrame([{name: _cell(value) for name, value in row.items()} for row in rows])
    except ImportError as error:
        raise UserError(f"library: {library} is not installed ({error}); run: pip install {library}") from None


def _cell(value: object) -> object:
    return to_yaml_line(value) if isinstance(value, dict) else value
