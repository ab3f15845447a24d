"""All screens except the workbench: their addresses, and what their handlers return."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from archlab.atlas.table import SORTED_BY
from archlab.config.vocabulary import meant
from archlab.evidence.prices import BASE, CONTEXT
from archlab.evidence.topics import chapters
from archlab.pricing.units import plural
from archlab.report.atlas import linked, table_parts
from archlab.report.ledger.words import in_short
from archlab.ui.atlas.axes import AXES, label
from archlab.ui.atlas.one_model import NotInAtlasError, model_page
from archlab.ui.atlas.published import config_axes
from archlab.ui.atlas.screen import models_screen
from archlab.ui.atlas.view import ModelsView
from archlab.ui.bench.workbench import View
from archlab.ui.choice import explained as choice
from archlab.ui.choice.open_model import OpenModel
from archlab.ui.compare.comparison import compare
from archlab.ui.compare.differences import differences_study
from archlab.ui.configs import ComparedConfigs, Variant
from archlab.ui.lab.plan import scales_to_start
from archlab.ui.lab.processes import StudyProcesses
from archlab.ui.lab.run_screens import RunScreens
from archlab.ui.lab.study_screens import StudyScreens
from archlab.ui.pages import as_file, page
from archlab.ui.routing import Action, Answer, name_and_query, routes
from archlab.ui.saved import SavedPage, check_page, compare_page, cost_page, costs_page, diff_page, models_page
from archlab.ui.search import MOST_RESULTS, search


def other_routes(root: Path, processes: StudyProcesses) -> list[Route]:
    """Return the routes to these screens for the folder `root`."""
    studies, runs = StudyScreens(root, processes), RunScreens(root)
    screens: Mapping[str, Answer] = {
        "/vs/{names:path}": lambda request: _compare(request, root),
        "/study/{names:path}": lambda request: PlainTextResponse(differences_study(_compared(request), root).text),
        "/models": lambda request: _models(request, root),
        "/models/{name:path}": lambda request: _model(request.path_params["name"]),
        "/choices": lambda request: _choices(request, root),
        "/choice/{name:path}": lambda request: _choice(request, root),
        "/search": lambda request: _search(request.query_params.get("q", ""), root),
        "/studies": studies.listed,
        "/studies/new": studies.new,
        "/studies/new/{names:path}": lambda request: studies.new_of(differences_study(_compared(request), root)),
        "/studies/plan": lambda _: RedirectResponse("/studies/new", 303),
        "/studies/of/{folder:path}": studies.shown,
        "/studies/live/{folder:path}": studies.live,
        "/studies/report/{folder:path}": studies.report,
        "/runs/of/{folder:path}": runs.shown,
        "/runs/live/{folder:path}": runs.live,
    }
    saved: Mapping[str, Callable[[Request], SavedPage]] = {
        "/save/cost/{name:path}": lambda request: cost_page(View.of(*name_and_query(request)), root),
        "/save/costs/{names:path}": lambda request: costs_page(_compared(request), root),
        "/save/check/{name:path}": lambda request: check_page(View.of(*name_and_query(request)), root),
        "/save/compare/{names:path}": lambda request: compare_page(_compared(request), root),
        "/save/choice/{name:path}": lambda request: _saved_choice(request, root),
        "/save/choices": lambda _: SavedPage("choices", as_file("choices", chapters=chapters(), in_model={})),
        "/save/model/{name:path}": lambda request: _saved_model(request.path_params["name"]),
        "/save/studies": studies.saved_list,
        "/save/diff/{names:path}": lambda request: diff_page(_compared(request), root),
        "/save/models": lambda request: models_page(_models_view(request)),
        "/save/study/{folder:path}": studies.saved,
        "/save/run/{folder:path}": runs.saved,
    }
    actions: Mapping[str, Action] = {
        "/studies/plan": studies.planned,
        "/studies/start": studies.start,
        "/studies/pause/{folder:path}": studies.pause,
        "/studies/resume/{folder:path}": studies.resume,
        "/studies/seed/{folder:path}": studies.add_seed,
    }
    return routes({**screens, **{path: _saving(page) for path, page in saved.items()}}, actions)


def _saving(saved: Callable[[Request], SavedPage]) -> Answer:
    return lambda request: saved(request).download()


def _models(request: Request, root: Path) -> Response:
    screen = models_screen(_models_view(request), root)
    axes = {"Fields of the table": AXES, "Fields of the config": config_axes()}
    values = {"sorted_by": SORTED_BY, "axes": axes, "label_of": label, "plural": plural, **table_parts()}
    answer = page("models", screen=screen, view=screen.view, **values)
    answer.headers["HX-Push-Url"] = screen.view.address
    return answer


def _models_view(request: Request) -> ModelsView:
    return ModelsView.of(request.query_params.multi_items())


def _model(name: str) -> Response:
    try:
        return page("model", shown=model_page(name), linked=linked)
    except NotInAtlasError as error:
        return RedirectResponse(error.address, 303)


def _saved_model(name: str) -> SavedPage:
    return SavedPage(name, as_file("model", shown=model_page(name), linked=linked))


def _choices(request: Request, root: Path) -> Response:
    opened = OpenModel.of(request.query_params.multi_items(), root)
    return page("choices", chapters=chapters(), in_model=opened.query if opened else {})


def _choice(request: Request, root: Path) -> Response:
    shown = _shown_choice(request, root)
    answer = page("choice", **_values(shown))
    answer.headers["HX-Replace-Url"] = shown.address
    return answer


def _saved_choice(request: Request, root: Path) -> SavedPage:
    return SavedPage(request.path_params["name"], as_file("choice", **_values(_shown_choice(request, root))))


def _shown_choice(request: Request, root: Path) -> choice.Screen:
    return choice.screen(*name_and_query(request), root)


def _values(shown: choice.Screen) -> dict[str, Any]:
    """Return the variables of the template for a choice."""
    return {**shown._asdict(), "base": BASE, "context": CONTEXT, "verdict": in_short, "scales": scales_to_start}


def _search(text: str, root: Path) -> Response:
    found = search(text, root)
    return page(
        "search", text=text, results=found[:MOST_RESULTS], n_more=max(0, len(found) - MOST_RESULTS), meant=meant(text)
    )


def _compare(request: Request, root: Path) -> Response:
    compared = _compared(request)
    if added := request.query_params.get("with"):
        return RedirectResponse(f"/vs/{ComparedConfigs((*compared.variants, Variant(added, {}))).address}", 303)
    return page("compare", comparison=compare(compared, root))


def _compared(request: Request) -> ComparedConfigs:
    return ComparedConfigs.of(_names(request), request.query_params.multi_items())


def _names(request: Request) -> list[str]:
    """Return the names of configs in the path. A slash inside a name is written as %2F."""
    path: str = request.scope["raw_path"].decode("ascii", "replace").partition("?")[0]
    screen = len(request.scope["path"]) - len(request.path_params["names"])
    return [unquote(name) for name in path[screen:].split("/") if name]
