"""The command `archlab draw`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from archlab.cli.arguments import ConfigName, Override, load_shape
from archlab.config.core.text import command_line, note
from archlab.config.effects import check_effect
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
        The .svg, .png or .pdf file to write. An .svg adapts to light and dark pages; the others are light.
    unfold
        Also draw the projections inside these branches: mlp, attention, cross, or several of them, as in
        mlp,attention. `cross` is the cross-attention of a model with an encoder.
    """
    if more_configs := [text for text in overrides if "=" not in text]:
        side_by_side = command_line("diff", config, more_configs[0], options=["--html", "pair.html"])
        raise UserError(f"draw takes one config; for two side by side, type: {side_by_side}")
    if out.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UserError(f"--out is {out}; allowed: a file name that ends in .svg, .png or .pdf")
    if out.is_dir():
        raise UserError(f"--out is {out}, a folder; allowed: a file name that ends in .svg, .png or .pdf")
    check_effect(overrides, "draw")
    from archlab.report.drawings.figure import draw
    from archlab.report.drawings.words import title_with

    shape, part = load_shape(config, overrides)
    names = [name.strip() for name in unfold.split(",")] if unfold else []
    figure = draw(shape, title=title_with(config, overrides), unfold=names, remark=part)
    if part:
        note(f"{config}: {part}")
    print(figure.save(out))
