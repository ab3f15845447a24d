"""Ctrl-C: heard wherever it comes, and a run ends at the next step, with a checkpoint."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

INTERRUPTED = "interrupted; run the same command again: what is finished is kept"

_heard = False
_first: list[Callable[[], None]] = []
"""What a second Ctrl-C does before it ends the process."""


def listen() -> None:
    """Remember a Ctrl-C from here on, for the import of a compiled module can swallow its KeyboardInterrupt.

    A second one ends the process at once: raised anywhere in what the first one began to put away, it would end in
    a traceback.
    """
    global _heard
    _heard = False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _handle)


def _handle(_number: int, _frame: FrameType | None) -> None:
    global _heard
    if _heard:
        end_at_once()
    _heard = True
    raise KeyboardInterrupt


@contextmanager
def before_the_end(act: Callable[[], None]) -> Iterator[None]:
    """Within it, a second Ctrl-C acts before the process ends: it stops those that would outlive it."""
    _first.append(act)
    try:
        yield
    except KeyboardInterrupt:  # in a program of somebody else's, which ends in its own way
        act()
        raise
    finally:
        _first.remove(act)


def end_at_once(*_: object) -> None:
    """Leave with exit code 130; what is half-written has a temporary name, and the next command removes it."""
    for act in _first:
        with suppress(Exception):
            act()
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\033[?25h\n")  # a progress bar hides the cursor
    os._exit(130)


def nothing_left() -> None:
    """The command is over: a Ctrl-C while Python shuts down has nothing to interrupt any more."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end_at_once)


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
        global _heard
        stop.asked = True
        if number == signal.SIGINT:
            _heard = before[signal.SIGINT] is _handle
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def apart(work: Callable[[], T]) -> T:
    """Do it in a thread, for a Ctrl-C is heard between two lines of Python, and compiled code may be long at work.

    The thread goes on after a Ctrl-C, and ends with the process at the latest.
    """
    from concurrent.futures import Future  # which takes as long to import as all else here

    box: Future[T] = Future()

    def run() -> None:
        try:
            box.set_result(work())
        except BaseException as error:  # whatever it is, it belongs to the caller
            box.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return box.result()


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
