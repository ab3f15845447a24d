"""Handling of Ctrl-C, SIGTERM and SIGHUP: a training run stops after its current step and writes a checkpoint."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

INTERRUPTED = "interrupted; to continue, repeat the command: finished work is kept"

_interrupted = False
_exit_hooks: list[Callable[[], None]] = []


def install_handler() -> None:
    """Record every Ctrl-C from now on, because the import of a compiled module can swallow the KeyboardInterrupt.

    SIGTERM (a job must end) and SIGHUP (the terminal has closed) have the same effect as Ctrl-C. A second Ctrl-C ends
    the process at once, because a second KeyboardInterrupt would interrupt the clean-up after the first one and print
    a traceback.
    """
    global _interrupted
    _interrupted = False
    if threading.current_thread() is threading.main_thread():
        for number in _wishes_to_end():
            signal.signal(number, _handle)


def _wishes_to_end() -> list[signal.Signals]:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in signals if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def _handle(_number: int, _frame: FrameType | None) -> None:
    global _interrupted
    if _interrupted:
        exit_now()
    _interrupted = True
    raise KeyboardInterrupt


@contextmanager
def on_forced_exit(hook: Callable[[], None]) -> Iterator[None]:
    """Within the block, a second Ctrl-C calls `hook` before the process ends, for example to stop child processes."""
    _exit_hooks.append(hook)
    try:
        yield
    except KeyboardInterrupt:  # a program that calls archlab decides how it ends
        hook()
        raise
    finally:
        _exit_hooks.remove(hook)


def exit_now(*_: object) -> None:
    """End the process with exit code 130.

    The next command recognizes incomplete files by their temporary names and removes them.
    """
    for hook in _exit_hooks:
        with suppress(Exception):
            hook()
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\033[?25h\n")  # a progress bar hides the cursor
    os._exit(130)


def exit_on_interrupt() -> None:
    """From now on, let Ctrl-C end the process without a message.

    Call this when the command is finished and Python shuts down.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, exit_now)


def was_interrupted() -> bool:
    return _interrupted


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if an earlier one was swallowed. Call this before long work begins."""
    if _interrupted:
        raise KeyboardInterrupt


class StopRequest:
    """Request to end a run. `requested` becomes True after a signal."""

    requested = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Yield an object whose `requested` becomes True after a signal. A second Ctrl-C ends the process at once."""
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
    """Call `work` in a thread and return its result, so that Ctrl-C works while compiled code runs for a long time.

    Python handles Ctrl-C only between two lines of Python. After Ctrl-C the thread continues. It ends with the process
    at the latest.
    """
    from concurrent.futures import Future  # this import takes as long as all others here

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the caller handles any error
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Let processes that start within the block ignore Ctrl-C.

    A terminal sends Ctrl-C to all processes, but only the parent should handle it. Child processes inherit the signal
    mask. A Ctrl-C within the block reaches the parent at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
