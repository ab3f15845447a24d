"""Parts of pages that the server sends again whenever they change (server-sent events)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
"""Limits of the time in seconds after which a part is made again."""

_LARGEST_SHARE = 0.1
"""Largest share of the time in which a part is made, because the machine is training."""


def live(request: Request, part: Callable[[], Markup]) -> StreamingResponse:
    """Return an answer that sends the part now and after each change, until the browser leaves."""
    return StreamingResponse(_events(request, part), media_type="text/event-stream")


async def _events(request: Request, part: Callable[[], Markup]) -> AsyncIterator[str]:
    last = Markup()
    while not await request.is_disconnected():
        since = time.monotonic()
        text = await run_in_threadpool(part)
        taken = time.monotonic() - since
        if text != last:
            data = "\n".join(f"data: {line}" for line in text.splitlines())
            yield f"{data}\n\n"
            last = text
        await asyncio.sleep(min(max(_SHORTEST_PAUSE, taken / _LARGEST_SHARE), _LONGEST_PAUSE))
