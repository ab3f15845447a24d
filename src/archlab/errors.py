"""The one error that a user is meant to read, and what a user is told of other errors."""

import traceback

OWN_CODE: set[str] = set()
"""Files of plug-ins: an error in one is told by its line."""


class UserError(Exception):
    """Bad input: the message names the field or file, what was found and what is allowed. Exit code 2."""


def user_message(error: BaseException) -> str | None:
    """What to tell a user of an error that is no bug: of input, of the system, of memory, or of a plug-in. None for a
    bug."""
    match error:
        case UserError():
            return str(error)
        case _ if is_out_of_memory(error):
            return _TOO_LITTLE_MEMORY
        case _ if where := _in_own_code(error):
            return f"plug-in {where}: {type(error).__name__}: {error}"
        case OSError():
            return f"{error.filename}: {error.strerror or error}" if error.filename else str(error.strerror or error)
        case _:
            return None


def is_out_of_memory(error: BaseException) -> bool:
    """Python's error, or torch's: on a GPU it is known by its class, on a CPU by its text."""
    torchs = type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and torchs)


def _in_own_code(error: BaseException) -> str:
    """The last file and line of a plug-in on the way to the error; empty where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"{f.filename}, line {f.lineno}" for f in reversed(frames) if f.filename in OWN_CODE), "")


_TOO_LITTLE_MEMORY = "too little memory; try a smaller train.micro_batch_tokens, and in a study fewer --workers"
