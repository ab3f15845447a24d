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


@contextmanager
def at(field: str) -> Iterator[None]:
    """Begin the message of each UserError with the name of the field whose value is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{field}: {error}") from None


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
