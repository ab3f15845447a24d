"""An SVG on disk, as it is or as PNG."""

from pathlib import Path

import vl_convert

from archlab.files import make_folder, write_atomic
from archlab.report.drawings.svg import Svg

_SCALE = 2


def write_picture(svg: Svg, path: Path) -> Path:
    """Write it, and the folders above it: a PNG, in light colours, where the name ends so; its path."""
    make_folder(path.parent)
    is_png = path.suffix.lower() == ".png"
    write_atomic(path, vl_convert.svg_to_png(svg, scale=_SCALE) if is_png else svg)
    return path
