"""Ctrl-C, SIGTERM and SIGHUP, whenever they come: a training stops after its current step, with a checkpoint."""

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

_interrupted = False
_exit_hooks: list[Callable[[], None]] = []
"""What `exit_now` calls before it ends the process."""


def install_handler() -> None:
    """Remember every Ctrl-C from here on, because the import of a compiled module can swallow its KeyboardInterrupt.

    A job that must leave (SIGTERM) and a terminal that is gone (SIGHUP) are taken alike. A second Ctrl-C ends the
    process at once. Raised a second time, KeyboardInterrupt would break the clean-up after the first one, and end in a
    traceback.
    """
    global _interrupted
    _interrupted = False
    if threading.current_thread() is threading.main_thread():
        for number in _wishes_to_end():
            signal.signal(number, _handle)


def _wishes_to_end() -> list[signal.Signals]:
    """Without those that are ignored, as by nohup."""
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in every if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def _handle(_number: int, _frame: FrameType | None) -> None:
    global _interrupted
    if _interrupted:
        exit_now()
    _interrupted = True
    raise KeyboardInterrupt


@contextmanager
def on_forced_exit(hook: Callable[[], None]) -> Iterator[None]:
    """Within it, a second Ctrl-C calls `hook` before the process ends, to stop processes that would outlive it."""
    _exit_hooks.append(hook)
    try:
        yield
    except KeyboardInterrupt:  # where another program calls archlab, it decides how it ends
        hook()
        raise
    finally:
        _exit_hooks.remove(hook)


def exit_now(*_: object) -> None:
    """Leave with exit code 130. Half-written files have a temporary name, and the next command removes them."""
    for hook in _exit_hooks:
        with suppress(Exception):
            hook()
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\033[?25h\n")  # a progress bar hides the cursor
    os._exit(130)


def exit_on_interrupt() -> None:
    """The command is over: from here on, while Python shuts down, a Ctrl-C ends the process without a message."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, exit_now)


def was_interrupted() -> bool:
    """Whether a Ctrl-C came since `install_handler`."""
    return _interrupted


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt that was swallowed, if one was; called before long work begins."""
    if _interrupted:
        raise KeyboardInterrupt


class StopRequest:
    """Whether the run was asked to end."""

    requested = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn what asks the process to end into `stop.requested`; a second Ctrl-C acts at once."""
    raise_if_interrupted()
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _wishes_to_end()}

    def handle(number: int, _frame: FrameType | None) -> None:
        global _interrupted
        stop.requested = True
        if number == signal.SIGINT:
            _interrupted = before[signal.SIGINT] is _handle
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, called in a thread, so that a Ctrl-C is noticed while compiled code runs for long.

    Python notices it only between two lines of Python. The thread goes on after a Ctrl-C, and ends with the process at
    the latest.
    """
    from concurrent.futures import Future  # importing it takes as long as importing all else here

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it is, it belongs to the caller
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started within it ignore Ctrl-C: a terminal sends it to all of them, but only the parent handles it.

    It works because a signal mask is inherited. A Ctrl-C that comes meanwhile is delivered at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
