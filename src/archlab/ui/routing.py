"""Routes from the address of a screen to the function that answers, and messages about errors of the user."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from archlab.config.core.text import visible
from archlab.errors import user_message
from archlab.ui.configs import UnknownNameError
from archlab.ui.cores import run_on_free_core
from archlab.ui.pages import page

Answer = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
"""Function that answers a posted form, whose fields are its second argument."""


_THREADS = CapacityLimiter(4)
"""Threads that answer requests, in the order of arrival. More threads would only wait for each other, because Python
runs one at a time."""

_OF_ONE_SCREEN = ("type", "path", "path_params", "query_string", "headers")
"""Parts of a request from which a screen is computed. They can be pickled."""


def routes(
    screens: Mapping[str, Answer], actions: Mapping[str, Action], on_all_cores: Mapping[str, Answer] | None = None
) -> list[Route]:
    """Return the routes to screens and to actions, each by its path. Those `on_all_cores` are screens, too, and many
    browsers may ask for them at the same time. Their functions must be picklable."""
    return [
        *(Route(path, _showing(answer)) for path, answer in screens.items()),
        *(Route(path, _acting(action), methods=["POST"]) for path, action in actions.items()),
        *(Route(path, _computing(answer)) for path, answer in (on_all_cores or {}).items()),
    ]


def name_and_query(request: Request) -> tuple[str, list[tuple[str, str]]]:
    """Return the name in the path of a request, and the names and values in its query."""
    return request.path_params["name"], request.query_params.multi_items()


def problem(request: Request, message: str, status: int) -> Response:
    """Return a message. If the page asked for a part of itself, the message replaces only the place for messages."""
    text = visible(message)
    if "HX-Request" not in request.headers:
        return page("error", status, message=text)
    answer = page("problem", message=text)  # status 200, because a browser logs any other one as a fault of the page
    answer.headers.update({"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Push-Url": "false"})
    return answer


def _answered(answer: Answer, request: Request) -> Response:
    """Return the answer to a request. If it raises an error of the user, return a message."""
    try:
        return answer(request)
    except UnknownNameError as error:
        return problem(request, str(error), 404)
    except Exception as error:
        if (message := user_message(error)) is None:
            raise
        return problem(request, message, 422)


def _answered_from(answer: Answer, parts: Mapping[str, Any]) -> Response:
    """Return the answer to the request that has these parts."""
    return _answered(answer, Request({**parts}))


Handler = Callable[[Request], Awaitable[Response]]


def _reporting(handler: Handler) -> Handler:
    """Return a handler that reports an error in archlab in the terminal."""

    async def reported(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception:
            logging.getLogger("uvicorn.error").exception("error in %s", request.url.path)
            return problem(request, "an error in archlab; the terminal shows it", 500)

    return reported


def _showing(answer: Answer) -> Handler:
    """Return a handler of a screen."""
    return _reporting(lambda request: to_thread.run_sync(_answered, answer, request, limiter=_THREADS))


def _computing(answer: Answer) -> Handler:
    """Return a handler of a screen that is computed on all cores."""
    return _reporting(
        lambda request: run_on_free_core(_answered_from, answer, {key: request.scope[key] for key in _OF_ONE_SCREEN})
    )


def _acting(action: Action) -> Handler:
    """Return a handler that reads a posted form."""

    async def handler(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace").replace("%0D%0A", "%0A")
        fields = dict(parse_qsl(body, keep_blank_values=True))
        return await to_thread.run_sync(_answered, lambda asked: action(asked, fields), request, limiter=_THREADS)

    return _reporting(handler)
