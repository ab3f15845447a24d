"""Values of Python and of other libraries as values of YAML."""

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from archlab.config.core.merge import MOST_DEPTH, Raw
from archlab.errors import UserError


def plain_number(value: Any) -> Any:
    """Return the number or the bool of Python that equals one of NumPy. Return any other value unchanged."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    is_bool = getattr(value, "ndim", None) == 0 and str(getattr(value, "dtype", None)) == "bool"
    return bool(value) if is_bool else value


def plain_values(values: Mapping[str, Any], at: str = "", room: int = MOST_DEPTH) -> Raw:
    """Return values of Python as values of YAML, in sections that are dicts.

    Numbers of NumPy become Python's, paths become texts, and a dtype of torch becomes its name. `at` is the path of the
    section. Raise UserError, which names the field, for a value that YAML cannot have.
    """
    return {key: _plain(value, f"{at}{key}", room - 1) for key, value in values.items()}


def _plain(value: Any, at: str, room: int) -> Any:
    if room < 0:
        raise UserError(f"{at[:40]}...: sections are nested more than {MOST_DEPTH} deep")
    number = plain_number(value)
    match number:
        case None | str() | bool() | int() | float():
            return number
        case Mapping():
            return plain_values(number, f"{at}.", room)
        case list() | tuple():
            return [_plain(item, f"{at}.{index}", room - 1) for index, item in enumerate(number)]
        case PurePath():
            return str(number)
        case _ if str(number).startswith("torch.") and type(number).__name__ == "dtype":
            return str(number).removeprefix("torch.")
        case _:
            allowed = "a text, a number, True, False, None, a list or a dict"
            raise UserError(f"{at}: is a value of class {type(number).__name__}; allowed: {allowed}")
