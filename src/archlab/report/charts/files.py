"""Pictures as the content of files: SVG, PDF and PNG. No browser is needed."""

from collections.abc import Callable
from typing import get_args

import vl_convert

from archlab.displayed import FigureFormat
from archlab.errors import UserError

SCALE = 2
"""Pixels of a PNG for each unit of the picture."""


def svg_file(svg: str, format: FigureFormat) -> bytes:
    """Return an SVG as the content of a file. A PDF contains the fonts of its text.

    Raise UserError if the format is unknown, or if the picture cannot be drawn.
    """
    convert: dict[str, Callable[[], bytes]] = {
        "svg": svg.encode,
        "pdf": lambda: vl_convert.svg_to_pdf(svg),
        "png": lambda: vl_convert.svg_to_png(svg, scale=SCALE),
    }
    if format not in convert:
        raise UserError(f"format: {format!r}; allowed: {', '.join(get_args(FigureFormat))}")
    return drawn_by(convert[format])


def drawn_by(convert: Callable[[], bytes]) -> bytes:
    """Return the result of a function of vl-convert. Raise UserError if it cannot draw the picture."""
    try:
        return convert()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in vl-convert is not an Exception
        raise UserError(f"could not draw the picture: {error}") from error
