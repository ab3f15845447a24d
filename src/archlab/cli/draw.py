"""`archlab draw`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from archlab.cli.arguments import load_shape
from archlab.config.core.text import note
from archlab.config.layers import distinct_layers
from archlab.errors import UserError

_A_LINE = 44
"""Characters of a heading that are as wide as the narrowest diagram."""


def run(
    config: str,
    /,
    *overrides: str,
    out: Path,
    unfold: Annotated[str, Parameter(show_default=False)] = "",
) -> None:
    """Draw a block diagram of a config: its layers as they are wired, with norms, branches, heads and widths.

    It is drawn from the resolved layers that the model is built of. docs/drawing.md says how to read it.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id; also a model of the atlas that
        cannot be built.
    overrides
        Fields to change, as in model.norm.placement=post.
    out
        The file to write: an .svg, for light and dark, or a .png, light.
    unfold
        Draw the inside of these branches, with their projections: mlp, attention, or both between commas.
    """
    if others := [text for text in overrides if "=" not in text]:
        pair = f"{config} {others[0]}"
        raise UserError(f"draw: draws one config; two side by side: archlab diff {pair} --html pair.html")
    if out.suffix.lower() not in (".svg", ".png"):
        raise UserError(f"--out: {out}; allowed: a file that ends in .svg or .png")
    if out.is_dir():
        raise UserError(f"{out}: is a folder; --out names a file")
    from archlab.report.drawings.block import block_diagram
    from archlab.report.drawings.inside import check_unfold
    from archlab.report.drawings.svg import write_picture

    shape, part = load_shape(config, overrides)
    names = [name.strip() for name in unfold.split(",")] if unfold else []
    check_unfold(distinct_layers(shape.model), names)
    if part:
        note(f"{config}: {part}")
    print(write_picture(block_diagram(shape, _title(config, overrides), names, part), out))


def _title(config: str, overrides: tuple[str, ...]) -> str:
    """Return the config's name, with its changes if a line has room for them."""
    changed = f"{config} with {' '.join(overrides)}"
    if len(changed) <= _A_LINE:
        return changed if overrides else config
    return f"{config} with {len(overrides)} field{'s' if len(overrides) > 1 else ''} changed"
