"""The command `archlab draw`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from archlab.cli.arguments import ConfigName, Override, load_shape
from archlab.config.core.text import note
from archlab.config.effects import check_effect
from archlab.config.layers import distinct_layers, stacks
from archlab.errors import UserError


def run(
    config: ConfigName,
    /,
    *overrides: Override,
    out: Path,
    unfold: Annotated[str, Parameter(show_default=False)] = "",
) -> None:
    """Draw a block diagram of a config, with the norms, branches, heads and widths of its layers.

    The diagram shows the resolved layers, from which the model is built. docs/drawing.md explains its symbols.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id. A published model that archlab cannot
        build works, too.
    overrides
        Fields to change, as in model.norm.placement=post.
    out
        The .svg or .png file to write. An .svg adapts to light and dark pages; a .png is light.
    unfold
        Also draw the projections inside these branches: mlp, attention, cross, or several of them, as in
        mlp,attention. `cross` is the cross-attention of a model with an encoder.
    """
    if more_configs := [text for text in overrides if "=" not in text]:
        pair = f"{config} {more_configs[0]}"
        raise UserError(f"draw takes one config; for two side by side, type: archlab diff {pair} --html pair.html")
    if out.suffix.lower() not in (".svg", ".png"):
        raise UserError(f"--out is {out}; allowed: a file name that ends in .svg or .png")
    if out.is_dir():
        raise UserError(f"--out is {out}, a folder; allowed: a file name that ends in .svg or .png")
    check_effect(overrides, "draw")
    from archlab.report.drawings.block import block_diagram
    from archlab.report.drawings.inside import check_unfold
    from archlab.report.drawings.svg import write_picture
    from archlab.report.drawings.words import title_with

    shape, part = load_shape(config, overrides)
    names = [name.strip() for name in unfold.split(",")] if unfold else []
    check_unfold([layer for stack in stacks(shape.model) for layer in distinct_layers(stack)], names)
    if part:
        note(f"{config}: {part}")
    print(write_picture(block_diagram(shape, title_with(config, overrides), names, part), out))
