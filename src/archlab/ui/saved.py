"""Pages that a screen saves: the file that a command writes for the same question, or the screen itself."""

import re
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from archlab.config.identity import differences
from archlab.config.training import without_teacher
from archlab.pricing.hardware import load_hardware
from archlab.pricing.summary import cost
from archlab.report import atlas, check
from archlab.report.cost.tables import OF_MODEL
from archlab.review.findings import findings
from archlab.review.shape_rule import Case
from archlab.ui.atlas.view import ModelsView, chosen_models
from archlab.ui.bench.workbench import DEVICE, View
from archlab.ui.compare.comparison import compare, compared_context
from archlab.ui.configs import ComparedConfigs, load
from archlab.ui.pages import as_file

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:; "
    "form-action 'none'; sandbox allow-scripts"
)
"""Content security policy of a page. It has scripts of its own, so it is isolated from the screens."""


class SavedPage(NamedTuple):
    """A page in one HTML file."""

    name: str
    """Name of the file without `.html`. Characters other than letters, digits, dots and dashes become dashes."""
    html: str | bytes

    def download(self) -> Response:
        """Return the answer that a browser saves as a file."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.")
        headers = {
            "Content-Disposition": f'attachment; filename="{name}.html"',
            "Content-Security-Policy": REPORT_POLICY,
        }
        return Response(self.html, media_type="text/html", headers=headers)


def cost_page(view: View, root: Path) -> SavedPage:
    """Return the page of `archlab cost --html` for a view of the workbench."""
    from archlab.report.cost.page import render  # Altair takes a second to load

    config = without_teacher(load(view.variant, root).config, OF_MODEL)
    context = view.context or config.model.max_seq_len
    costs = cost(config, view.batch, context)
    title = view.variant.title
    html = render({title: config}, {title: {(context, view.batch): costs}}, load_hardware(view.device), costs.dtype)
    return SavedPage(f"{view.name}-cost", html)


def costs_page(compared: ComparedConfigs, root: Path) -> SavedPage:
    """Return the page of `archlab cost --html` for several configs."""
    from archlab.report.cost.page import render

    names = compared.titles
    loaded = [without_teacher(load(variant, root).config, OF_MODEL) for variant in compared.variants]
    context = compared_context(loaded)
    costs = {name: {(context, 1): cost(config, 1, context)} for name, config in zip(names, loaded, strict=True)}
    html = render(dict(zip(names, loaded, strict=True)), costs, load_hardware(DEVICE), "bfloat16")
    return SavedPage(f"{'-'.join(names)}-cost", html)


def compare_page(compared: ComparedConfigs, root: Path) -> SavedPage:
    """Return the screen of a comparison as a page."""
    comparison = compare(compared, root)
    return SavedPage("-".join(comparison.titles), as_file("compare", comparison=comparison))


def check_page(view: View, root: Path) -> SavedPage:
    """Return the page of `archlab check --html`."""
    shape = load(view.variant, root)
    case = Case(shape.config)
    review = check.Review(case, tuple(findings(case)), shape.part)
    return SavedPage(f"{view.name}-check", check.render(view.variant.title, review))


def models_page(view: ModelsView) -> SavedPage:
    """Return the page of `archlab list presets --html` for a view of the published models."""
    return SavedPage("models", atlas.render(chosen_models(view)))


def diff_page(compared: ComparedConfigs, root: Path) -> SavedPage:
    """Return the page of `archlab diff --model-only --html`. Raise UserError unless there are two configs."""
    from archlab.report.drawings.diff_page import render

    a, b = zip(compared.titles, (load(variant, root).config for variant in compared.pair()), strict=True)
    return SavedPage(f"{a[0]}-{b[0]}-differences", render(a, b, differences(a[1], b[1], model_only=True)))
