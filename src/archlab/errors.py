"""The one error that a user is meant to read."""


class UserError(Exception):
    """Bad input: the message names the field or file, what was found and what is allowed. Exit code 2."""
