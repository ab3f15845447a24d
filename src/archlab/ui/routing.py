"""Routes from the address of a screen to the function that answers, and messages about errors of the user."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from archlab.config.core.text import visible
from archlab.errors import user_message
from archlab.ui.configs import UnknownNameError
from archlab.ui.pages import page

Answer = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
"""Function that answers a posted form, whose fields are its second argument."""


_THREADS = CapacityLimiter(4)
"""Threads that answer requests, in the order of arrival. More threads would only wait for each other, because Python
runs one at a time."""


def routes(screens: Mapping[str, Answer], actions: Mapping[str, Action]) -> list[Route]:
    """Return the routes to screens and to actions, each by its path."""
    return [
        *(Route(path, _showing(answer)) for path, answer in screens.items()),
        *(Route(path, _acting(action), methods=["POST"]) for path, action in actions.items()),
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


def _answering(answer: Answer) -> Callable[[Request], Response]:
    """Return a function that shows an error of the user as a message."""

    def handler(request: Request) -> Response:
        try:
            return answer(request)
        except UnknownNameError as error:
            return problem(request, str(error), 404)
        except Exception as error:
            if (message := user_message(error)) is None:
                logging.getLogger("uvicorn.error").exception("error in %s", request.url.path)
                return problem(request, "an error in archlab; the terminal shows it", 500)
            return problem(request, message, 422)

    return handler


def _showing(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of a screen."""

    async def handler(request: Request) -> Response:
        return await to_thread.run_sync(_answering(answer), request, limiter=_THREADS)

    return handler


def _acting(action: Action) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that reads a posted form."""

    async def handler(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace").replace("%0D%0A", "%0A")
        fields = dict(parse_qsl(body, keep_blank_values=True))
        return await to_thread.run_sync(_answering(lambda asked: action(asked, fields)), request, limiter=_THREADS)

    return handler
