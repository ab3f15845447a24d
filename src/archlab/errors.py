"""The error type for mistakes in the input, and messages for all errors that are not bugs."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

OWN_CODE: set[str] = set()
"""Paths of the loaded plug-in files. If a plug-in raises an error, the message names the file and the line."""


class UserError(Exception):
    """Error in the input, which ends a command with exit code 2.

    The message names the field or file, the value found and the allowed values.
    """


class Refusals:
    """Collection of errors in the input that are independent of each other, so that the user learns of all of them at
    once."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the UserError of the `with` block, if it raises one."""
        try:
            yield
        except UserError as error:
            self._messages |= dict.fromkeys(str(error).splitlines())

    def add(self, message: str) -> None:
        """Collect a message. Equal messages are collected once."""
        self._messages[message] = None

    def raise_any(self) -> None:
        """Raise one UserError with a line for each message, if there is any."""
        if self._messages:
            raise UserError("\n".join(self._messages))


@contextmanager
def at(field: str) -> Iterator[None]:
    """Begin the message of each UserError with the name of the field whose value is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{field}: {error}") from None


def check_at_least(minimum: int, **values: int | None) -> None:
    """Raise UserError if a number is smaller than `minimum`. Numbers are given by name; None is allowed."""
    for name, value in values.items():
        if value is not None and value < minimum:
            raise UserError(f"{name}: {value}; allowed: {minimum} or more")


def user_message(error: BaseException) -> str | None:
    """Return the message for the user, if the input, the system, a lack of memory or a plug-in caused the error.

    Return None for any other error, which is a bug in archlab.
    """
    match error:
        case UserError():
            return str(error)
        case _ if is_out_of_memory(error):
            return _TOO_LITTLE_MEMORY
        case _ if place := _line_of_plugin(error):
            return f"plug-in {place}: {type(error).__name__}: {error}"
        case OSError():
            return f"{error.filename}: {error.strerror or error}" if error.filename else str(error.strerror or error)
        case _:
            return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python or torch ran out of memory.

    If GPU memory runs out, torch raises its own exception class. If CPU memory runs out, torch raises a plain
    RuntimeError, which is recognized by its message.
    """
    is_torchs = type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_torchs)


def _line_of_plugin(error: BaseException) -> str:
    """Return the innermost plug-in file and line in the traceback, or an empty string if no plug-in is involved."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"{f.filename}, line {f.lineno}" for f in reversed(frames) if f.filename in OWN_CODE), "")


_TOO_LITTLE_MEMORY = "too little memory; try a smaller train.micro_batch_tokens, and in a study fewer --workers"
