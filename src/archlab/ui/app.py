"""The web application: the workbench, which opens first, and all other screens, which are loaded when one is opened."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from archlab.report.html import inlined
from archlab.ui.bench import workbench as bench
from archlab.ui.bench.inputs import all_fields
from archlab.ui.configs import config_names, settable
from archlab.ui.guard import Guard
from archlab.ui.lab.processes import StudyProcesses
from archlab.ui.pages import page
from archlab.ui.routing import Answer, name_and_query, problem, routes

FIRST = "/m/llama-3-8b"
"""Screen that `archlab ui` opens."""

_STYLES = ("report.css", "atlas.css")
"""Style sheets that screens share with the pages that commands write."""


def create_app(root: Path, token: str, port: int, hosts: Sequence[str], processes: StudyProcesses) -> Starlette:
    """Return the application for the folder `root`. Only browsers that know `token` can use it (see `Guard`).
    `processes` train the studies that users start. Set `state.stopping` of the application when the server stops."""
    screens: dict[str, Answer] = {
        "/": lambda _: RedirectResponse(FIRST, 303),
        "/yaml/{name:path}": lambda request: _text(bench.config_text, request, root),
        "/flatten/{name:path}": lambda request: _text(bench.model_file, request, root),
        "/favicon.ico": lambda _: Response(status_code=204),  # pages of plain text name no picture of their own
        "/fields": lambda _: page("options", options=all_fields()),
        "/configs": lambda _: page("options", options=dict.fromkeys(config_names(root), "")),
        **{f"/{name}": lambda _, name=name: Response(inlined(name), media_type="text/css") for name in _STYLES},
    }
    static = StaticFiles(directory=str(resources.files("archlab.ui") / "static"))

    def others() -> ASGIApp:
        from archlab.ui.screens import other_routes  # loads Altair, all models and all results

        return Router(other_routes(root, processes))

    app = Starlette(
        routes=[
            *routes(screens, {}, {"/m/{name:path}": partial(_workbench, root)}),
            Mount("/static", static),
            Mount("/", _OnFirstRequest(others)),
        ],
        middleware=[Middleware(Guard, token=token, port=port, hosts=hosts)],
        exception_handlers={404: lambda request, _: problem(request, f"unknown page {request.url.path}", 404)},
    )
    app.state.stopping = asyncio.Event()
    return app


class _OnFirstRequest:
    """Application that is made when its first request arrives."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._made = cache(make)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await run_in_threadpool(self._made))(scope, receive, send)


def _workbench(root: Path, request: Request) -> Response:
    name, query = name_and_query(request)
    values = {field: value for field, value in query if value}
    field, value = values.pop("add", ""), values.pop("value", "")
    added = settable({field: value}) if field else {}
    try:
        view = bench.View.of(name, list(values.items()))
        screen = bench.workbench(view, root, added)
    except bench.NotCanonicalError as error:
        return RedirectResponse(error.address, 303)
    answer = page(
        "workbench",
        bench=screen,
        view=screen.view,
        lines=bench.finding_lines,
    )
    answer.headers["HX-Push-Url"] = screen.view.address()
    return answer


def _text(text_of: Callable[[bench.View, Path], str], request: Request, root: Path) -> Response:
    return PlainTextResponse(text_of(bench.View.of(*name_and_query(request)), root))
