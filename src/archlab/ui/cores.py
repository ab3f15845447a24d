"""Computation on all cores: in a thread of the server and, while this thread is busy, in other processes."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter, WouldBlock, to_process, to_thread

from archlab.machine import cores

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_PLACES, _THREAD = CapacityLimiter(cores()), CapacityLimiter(1)


async def run_on_free_core(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Call a function, and return its result. Calls that find no free core wait in order.

    The function, its arguments and its result must be picklable. Python runs one thread at a time, so a second call
    needs a process of its own. The first such call waits until that process has loaded archlab.
    """
    async with _PLACES:
        try:
            _THREAD.acquire_nowait()
        except WouldBlock:
            return await to_process.run_sync(function, *args)
        try:
            return await to_thread.run_sync(function, *args)
        finally:
            _THREAD.release()
