"""`archlab draw`."""

from pathlib import Path

from archlab.cli.loading import load_shape
from archlab.errors import UserError

_A_LINE = 44
"""Characters of a heading that are as wide as the narrowest diagram."""


def run(config: str, /, *overrides: str, out: Path) -> None:
    """Draw a block diagram of a config: its layers as they are wired, with norms, branches, heads and widths.

    It is drawn from the resolved layers that the model is built of. docs/drawing.md says how to read it.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.norm.placement=post.
    out
        The file to write: an .svg, for light and dark, or a .png, light.
    """
    if out.suffix.lower() not in (".svg", ".png"):
        raise UserError(f"--out: {out}; allowed: a file that ends in .svg or .png")
    if out.is_dir():
        raise UserError(f"{out}: is a folder; --out names a file")
    from archlab.report.drawings.block import block_diagram
    from archlab.report.drawings.write import write_picture

    print(write_picture(block_diagram(load_shape(config, overrides), _title(config, overrides)), out))


def _title(config: str, overrides: tuple[str, ...]) -> str:
    """With what is changed, where a line has room for it."""
    changed = f"{config} with {' '.join(overrides)}"
    if len(changed) <= _A_LINE:
        return changed if overrides else config
    return f"{config} with {len(overrides)} field{'s' if len(overrides) > 1 else ''} changed"
