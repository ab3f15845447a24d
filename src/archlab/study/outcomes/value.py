"""Checks of the values that a user's outcome returns."""

import math
from collections.abc import Callable
from typing import Any

from archlab.config.core.contract import breach, short
from archlab.study.outcomes.schema import Outcome


def check_value(kind: type[Outcome], value: Any, *_: Any) -> float | None:
    """Return the value as a float. Raise UserError for anything but a finite number or None."""
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return None if value is None else float(value)
    raise breach(kind, f"its function returned {short(value)}; allowed: a finite number, or None")


def check_timer(kind: type[Outcome], timer: Any, *_: Any) -> Callable[[], float | None]:
    """Return `timer` with a check of each value that it returns. Raise UserError if `timer` is not callable."""
    if not callable(timer):
        raise breach(kind, f"its function returned {short(timer)}; allowed: a function without arguments")
    return lambda: check_value(kind, timer())
