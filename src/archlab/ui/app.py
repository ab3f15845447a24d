"""The web application: the address of each screen, and what its handler returns."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from archlab.atlas.table import SORTED_BY
from archlab.config.core.text import visible
from archlab.errors import user_message
from archlab.evidence.price import BASE, CONTEXT
from archlab.evidence.topics import chapters
from archlab.pricing.units import plural
from archlab.report.atlas import linked, table_parts
from archlab.report.html import inlined
from archlab.report.ledger.words import in_short
from archlab.study.study_file import scales_of
from archlab.ui import choice
from archlab.ui import workbench as bench
from archlab.ui.choices import all_fields
from archlab.ui.compare import compare, study_text
from archlab.ui.configs import ComparedConfigs, UnknownNameError, Variant, config_names
from archlab.ui.guard import Guard
from archlab.ui.lab.processes import StudyProcesses
from archlab.ui.lab.run_screens import RunScreens
from archlab.ui.lab.screens import Lab
from archlab.ui.model_page import NotInAtlasError, model_page
from archlab.ui.models import ModelsView, models_screen
from archlab.ui.pages import page
from archlab.ui.saved import SavedPage, check_page, cost_page, costs_page, diff_page, models_page
from archlab.ui.scatter import AXES

FIRST = "/m/llama-3-8b"
"""Screen that `archlab ui` opens."""

_STYLES = ("report.css", "atlas.css")
"""Style sheets that screens share with the pages that commands write."""

Answer = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
"""Function that answers a posted form, whose fields are its second argument."""


def create_app(root: Path, token: str, port: int, hosts: Sequence[str], processes: StudyProcesses) -> Starlette:
    """Return the application for the folder `root`. Only browsers that know `token` can use it (see `Guard`).
    `processes` train the studies that users start."""
    screens: dict[str, Answer] = {
        "/": lambda _: RedirectResponse(FIRST, 303),
        "/m/{name:path}": lambda request: _workbench(request, root),
        "/vs/{names:path}": lambda request: _compare(request, root),
        "/study/{names:path}": lambda request: PlainTextResponse(study_text(_compared(request), root)),
        "/yaml/{name:path}": lambda request: _yaml(request, root),
        "/flatten/{name:path}": lambda request: _flatten(request, root),
        "/models": lambda request: _models(request, root),
        "/models/{name:path}": lambda request: _model(request.path_params["name"]),
        "/choices": lambda _: page("choices", chapters=chapters()),
        "/choice/{name:path}": lambda request: _choice(request, root),
        "/search": lambda request: _search(request.query_params.get("q", "")),
        "/fields": lambda _: page("options", options=all_fields()),
        "/configs": lambda _: page("options", options=dict.fromkeys(config_names(root), "")),
        **{f"/{name}": lambda _, name=name: Response(inlined(name), media_type="text/css") for name in _STYLES},
    }
    lab, runs = Lab(root, processes), RunScreens(root)
    screens |= {
        "/studies": lab.listed,
        "/studies/new": lab.new,
        "/studies/of/{folder:path}": lab.shown,
        "/studies/live/{folder:path}": lab.live,
        "/studies/report/{folder:path}": lab.report,
        "/runs/of/{folder:path}": runs.shown,
        "/runs/live/{folder:path}": runs.live,
    }
    pages: dict[str, Callable[[Request], SavedPage]] = {
        "/cost/{name:path}": lambda request: cost_page(_view(request), root),
        "/costs/{names:path}": lambda request: costs_page(_compared(request), root),
        "/check/{name:path}": lambda request: check_page(_view(request), root),
        "/diff/{names:path}": lambda request: diff_page(_compared(request), root),
        "/models": lambda request: models_page(_models_view(request)),
        "/study/{folder:path}": lab.saved,
        "/run/{folder:path}": runs.saved,
    }
    screens |= {f"/save{path}": _saving(saved) for path, saved in pages.items()}
    actions: dict[str, Action] = {
        "/studies/plan": lab.planned,
        "/studies/start": lab.start,
        "/studies/pause/{folder:path}": lab.pause,
        "/studies/resume/{folder:path}": lab.resume,
    }
    routes = [Route(path, _answering(answer)) for path, answer in screens.items()]
    routes += [Route(path, _acting(action), methods=["POST"]) for path, action in actions.items()]
    static = StaticFiles(directory=str(resources.files("archlab.ui") / "static"))
    return Starlette(
        routes=[*routes, Mount("/static", static)],
        middleware=[Middleware(Guard, token=token, port=port, hosts=hosts)],
        exception_handlers={404: lambda request, _: _problem(request, f"unknown page {request.url.path}", 404)},
    )


def _saving(saved: Callable[[Request], SavedPage]) -> Answer:
    return lambda request: saved(request).download()


def _answering(answer: Answer) -> Callable[[Request], Response]:
    """Return a handler that shows an error of the user as a message."""

    def handler(request: Request) -> Response:
        try:
            return answer(request)
        except UnknownNameError as error:
            return _problem(request, str(error), 404)
        except Exception as error:
            if (message := user_message(error)) is None:
                logging.getLogger("uvicorn.error").exception("error in %s", request.url.path)
                return _problem(request, "an error in archlab; the terminal shows it", 500)
            return _problem(request, message, 422)

    return handler


def _acting(action: Action) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that reads a posted form."""

    async def handler(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace").replace("%0D%0A", "%0A")
        fields = dict(parse_qsl(body, keep_blank_values=True))
        return await run_in_threadpool(_answering(lambda asked: action(asked, fields)), request)

    return handler


def _problem(request: Request, message: str, status: int) -> Response:
    """Return a message. If the page asked for a part of itself, the message replaces only the place for messages."""
    text = visible(message)
    if "HX-Request" not in request.headers:
        return page("error", status, message=text)
    answer = page("problem", message=text)  # status 200, because a browser logs any other one as a fault of the page
    answer.headers.update({"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Push-Url": "false"})
    return answer


def _workbench(request: Request, root: Path) -> Response:
    query = [(name, value) for name, value in request.query_params.multi_items() if value]
    words = dict(query)
    added = (words.pop("add"), words.pop("value", "")) if "add" in words else None
    try:
        view = bench.View.of(request.path_params["name"], list(words.items()))
        screen = bench.workbench(view, root, added)
    except bench.NotCanonicalError as error:
        return RedirectResponse(error.address, 303)
    answer = page("workbench", bench=screen, view=screen.view, lines=bench.finding_lines, locks=bench.LOCKS)
    answer.headers["HX-Push-Url"] = screen.view.address()
    return answer


def _models(request: Request, root: Path) -> Response:
    screen = models_screen(_models_view(request), root)
    answer = page(
        "models", screen=screen, view=screen.view, sorted_by=SORTED_BY, axes=AXES, plural=plural, **table_parts()
    )
    answer.headers["HX-Push-Url"] = screen.view.address
    return answer


def _models_view(request: Request) -> ModelsView:
    return ModelsView.of(request.query_params.multi_items())


def _model(name: str) -> Response:
    try:
        return page("model", shown=model_page(name), linked=linked)
    except NotInAtlasError as error:
        return RedirectResponse(error.address, 303)


def _choice(request: Request, root: Path) -> Response:
    shown = choice.screen(request.path_params["name"], request.query_params.multi_items(), root)
    answer = page("choice", **shown._asdict(), base=BASE, context=CONTEXT, verdict=in_short, scales=scales_of)
    answer.headers["HX-Replace-Url"] = shown.address
    return answer


def _search(text: str) -> Response:
    return page("search", text=text, results=choice.search(text))


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


def _view(request: Request) -> bench.View:
    return bench.View.of(request.path_params["name"], request.query_params.multi_items())


def _yaml(request: Request, root: Path) -> Response:
    return PlainTextResponse(bench.config_text(_view(request), root))


def _flatten(request: Request, root: Path) -> Response:
    return PlainTextResponse(bench.model_file(_view(request), root))
