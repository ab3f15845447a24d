"""Parts of pages that the server sends again whenever they change (server-sent events)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from archlab.config.core.text import visible
from archlab.errors import user_message

State = TypeVar("State")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
"""Limits of the pause in seconds before a part is rendered again."""

_LARGEST_SHARE = 0.1
"""Maximum share of the time that rendering may take, because the machine is training."""


def live(request: Request, part: Callable[[], Markup]) -> StreamingResponse:
    """Return an answer that sends the part now and after each change, until the browser leaves or the server stops.

    `request.app.state.stopping` is the event that the server sets when it stops.
    """
    return StreamingResponse(_events(request, part), media_type="text/event-stream")


def state_or_problem(read: Callable[[], State]) -> tuple[State | None, str]:
    """Return a state and an empty string. If the files of the state are damaged, return None and the error message."""
    try:
        return read(), ""
    except Exception as error:
        if (message := user_message(error)) is None:
            raise
        return None, visible(message)


async def _events(request: Request, part: Callable[[], Markup]) -> AsyncIterator[str]:
    last, stopping = Markup(), request.app.state.stopping
    while not stopping.is_set() and not await request.is_disconnected():
        begin = time.monotonic()
        text = await run_in_threadpool(part)
        taken = time.monotonic() - begin
        if text != last:
            data = "\n".join(f"data: {line}" for line in text.splitlines())
            yield f"{data}\n\n"
            last = text
        with suppress(TimeoutError):
            pause = min(max(_SHORTEST_PAUSE, taken / _LARGEST_SHARE), _LONGEST_PAUSE)
            await asyncio.wait_for(stopping.wait(), pause)
