"""What our pages are made of: templates, styles, Vega, and a file that is replaced whole."""

import os
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from archlab.errors import UserError


def template(name: str) -> jinja2.Template:
    """One of our templates; what it prints is escaped, what it lacks an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archlab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def fitted(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite that is as wide as its place on the page."""
    return {**chart.to_dict(), "autosize": {"type": "fit-x", "contains": "padding"}}


@cache
def vega() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script, from the wheel of vl-convert."""
    return _unclosed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def inline(name: str) -> Markup:
    """A style or a script of ours, from the templates."""
    return _unclosed((resources.files("archlab.report") / "templates" / name).read_text(encoding="utf-8"))


def _unclosed(code: str) -> Markup:
    """Our own or Vega's code as it is, after making sure that it does not close the element it stands in."""
    if "</script" in code or "</style" in code or "<!--" in code:
        raise ValueError("code to inline would end its element early")
    return Markup(code)


def replace(path: Path, content: bytes) -> None:
    """Write aside, then rename: an interrupted call leaves the old file or the new one, whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(aside, 0o644)
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
