"""The report of a study: one HTML file that opens offline, and a picture of its charts."""

import os
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
import yaml
from markupsafe import Markup

from archlab.config.io import to_yaml
from archlab.errors import UserError
from archlab.report import charts, palette
from archlab.report.picture import picture
from archlab.report.rows import labels, lost
from archlab.study import wording
from archlab.study.record import StudySummary


def write_report(summary: StudySummary, folder: Path) -> Path:
    """Write `report.html` and `report.png` into the folder; the page's path.

    Each is written aside and then renamed, so an interrupted call leaves the old file or the new one, whole.
    """
    page = folder / "report.html"
    _replace(folder / "report.png", picture(summary))
    _replace(page, render(summary).encode())
    return page


def render(summary: StudySummary) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("archlab.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(
        bits=wording.bits, interval=wording.interval, count=wording.count, p_value=wording.p_value
    )
    environment.globals.update(span=wording.span, to_yaml=to_yaml, lost=lost, value=_value, duration=_duration)
    template = environment.get_template("report.html.jinja")
    return template.render(
        s=summary,
        labels=labels(summary),
        colours=list(zip(*(palette.arm_colours(summary, mode) for mode in palette.MODES), strict=True)),
        specs=_specs(summary),
        themes={mode: palette.vega_config(summary, mode) for mode in palette.MODES},
        style=_inline("report.css"),
        script=_inline("report.js"),
        vega=_vega(),
    )


def _specs(summary: StudySummary) -> dict[str, dict[str, Any]]:
    """Chart name -> Vega-Lite."""
    drawn = {
        "levels": charts.levels(summary),
        "differences": charts.differences(summary),
        "curves": charts.curves(summary),
    }
    fit = {"autosize": {"type": "fit-x", "contains": "padding"}}
    return {name: {**chart.to_dict(), **fit} for name, chart in drawn.items() if chart is not None}


@cache
def _vega() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script, from the wheel of vl-convert."""
    return _unclosed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _inline(name: str) -> Markup:
    return _unclosed((resources.files("archlab.report") / "templates" / name).read_text(encoding="utf-8"))


def _unclosed(code: str) -> Markup:
    """Our own or Vega's code as it is, after making sure that it does not close the element it stands in."""
    if "</script" in code or "</style" in code or "<!--" in code:
        raise ValueError("code to inline would end its element early")
    return Markup(code)


def _value(value: Any) -> str:
    """A config value as YAML would write it, on one line."""
    return (
        value
        if isinstance(value, str)
        else yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _replace(path: Path, content: bytes) -> None:
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
