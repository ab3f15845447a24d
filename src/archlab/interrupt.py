"""Ctrl-C: heard wherever it comes, and a run ends at the next step, with a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted; run the same command again: what is finished is kept"

_heard = False


def listen() -> None:
    """Remember a Ctrl-C from here on, for the import of a compiled module can swallow its KeyboardInterrupt."""

    global _heard
    _heard = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        global _heard
        _heard = True
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)


def was_heard() -> bool:
    """Whether a Ctrl-C came since `listen`."""
    return _heard


def heed() -> None:
    """Raise the KeyboardInterrupt that was swallowed, if one was; called before long work begins."""
    if _heard:
        raise KeyboardInterrupt


class Stop:
    """Whether somebody asked the run to end."""

    asked = False


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into `stop.asked`; a second Ctrl-C acts at once."""
    heed()
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.asked = True
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deaf() -> Iterator[None]:
    """Started processes do not hear Ctrl-C: a terminal sends it to all, but it is the parent's to handle.

    A thread's signal mask is inherited; one that comes meanwhile is heard at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
