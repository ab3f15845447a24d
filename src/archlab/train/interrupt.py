"""Ctrl-C and a polite kill end a run at the next step, with a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody asked the run to end."""

    asked = False


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turn the first SIGINT or SIGTERM into `stop.asked`; the second acts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.asked = True
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
