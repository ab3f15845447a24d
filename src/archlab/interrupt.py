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
    """Record each Ctrl-C from now on. The KeyboardInterrupt alone may get lost while a compiled module is being
    imported.

    SIGTERM (a job must end) and SIGHUP (the terminal has closed) are handled like Ctrl-C. A second Ctrl-C ends the
    process immediately. If it raised KeyboardInterrupt again, it would interrupt the clean-up after the first Ctrl-C
    and print a traceback.
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

    The process may leave incomplete files. They have temporary names, by which the next command recognizes and removes
    them.
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
    """Raise KeyboardInterrupt if the user has pressed Ctrl-C, because the first KeyboardInterrupt may have been lost.
    Call this before a long computation."""
    if _interrupted:
        raise KeyboardInterrupt


class StopRequest:
    """Request to end a run. `requested` becomes True when a signal arrives."""

    requested = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Yield a StopRequest whose `requested` becomes True when a signal arrives. A second Ctrl-C ends the process
    immediately."""
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
    """Call `work` in a thread and return its result. The caller then reacts to Ctrl-C even while `work` runs compiled
    code.

    In the main thread, Python would handle Ctrl-C only when the compiled code returns. After Ctrl-C, the thread
    continues until `work` or the process ends.
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

    A terminal sends Ctrl-C to the parent and to its child processes, but only the parent should handle it. The block
    therefore blocks the signal, and child processes inherit this signal mask. The parent receives a Ctrl-C at the end
    of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
