"""Pictures as values of Python, which a notebook shows and which can be written as files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archlab.calls import checked
from archlab.config.layers import distinct_layers, stacks
from archlab.displayed import Displayed, FigureFormat
from archlab.exchange.configs import ConfigSource, name_of, shape_of
from archlab.report.drawings.block import block_diagram
from archlab.report.drawings.inside import check_unfold
from archlab.report.drawings.svg import Svg, write_picture


@dataclass(frozen=True, repr=False)
class Figure(Displayed):
    """Picture of a model."""

    title: str
    svg: Svg
    """The picture as an `<svg>` element, with the colors of both light and dark mode."""

    def figure(self, format: FigureFormat = "svg") -> bytes:
        """Return the picture as the content of a file: `svg`, `pdf` or `png`. A PDF contains its fonts, and has the
        colors of light mode."""

        from archlab.report.charts.files import svg_file  # loads vl-convert

        return svg_file(self.svg, format)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the picture to a file whose name ends in .svg, .pdf or .png, and return its path."""
        return write_picture(self.svg, Path(path))

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {**super()._repr_mimebundle_(include, exclude), "image/svg+xml": self.svg}

    def _repr_html_(self) -> str:
        return self.svg  # JupyterLab prefers HTML to SVG


def draw(config: ConfigSource, *, title: str = "", unfold: Sequence[str] = (), remark: str = "") -> Figure:
    """Draw the block diagram of a config. It shows the resolved layers, from which the model is built.

    - `config`: a config, or its name, as for `archlab.load_config`. The name of a published model that archlab cannot
      build works, too.
    - `title`: name of the model above the diagram. By default, it is the name by which the config is given.
    - `unfold`: branches whose projections are also drawn: `mlp`, `attention` or `cross`.
    - `remark`: line below the title. By default, it says which part of a published model is drawn, if not all.

    Raise UserError if a branch cannot be unfolded.

    >>> archlab.draw("llama-3-8b", unfold=["mlp"]).save("model.svg")
    PosixPath('model.svg')
    """
    shape, title = shape_of(config), title or name_of(config, "a config")
    check_unfold([layer for stack in stacks(shape.config.model) for layer in distinct_layers(stack)], list(unfold))
    return Figure(title, block_diagram(shape.config, title, list(unfold), remark or shape.part))
