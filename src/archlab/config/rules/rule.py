"""Class of rules between fields, and checks that several rules share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import isqrt
from typing import Any, Generic, TypeVar

from archlab.config.components.norm import AnyRMSNorm, WeightedNorm
from archlab.config.model_schema import ModelConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    """Rule between several fields: the field to report, the fields that the rule reads, and the check.

    `broken` returns a message with the value found and the allowed values, or None if the rule holds. It is called only
    if all fields in `reads` are valid by themselves, so that one mistake is reported once.
    """

    field: str
    reads: tuple[str, ...]
    broken: Callable[[T], str | None]


def divisors(n: int) -> str:
    """Return all divisors of n, separated by commas."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return ", ".join(map(str, sorted({*small, *(n // d for d in small)})))


def needs_a_norm(field: str) -> Callable[[ModelConfig], str | None]:
    """Return the check of a rule: if `field` is true, the model must have a norm."""

    def broken(m: ModelConfig) -> str | None:
        wants_norm = reduce(lambda section, name: getattr(section, name, False), field.split("."), m)
        return (
            "true needs a norm, but model.norm.kind is none; allowed: false"
            if wants_norm and m.norm.kind == "none"
            else None
        )

    return broken


def offset_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    """Return the check of a rule: a norm with `unit_offset` must have a weight."""

    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, WeightedNorm) and norm.unit_offset and not norm.weight
        return "applies to the weight of the norm, but this norm has none; allowed: false" if lacks else None

    return broken


def cast_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    """Return the check of a rule: a norm that casts its result before the weight multiplies it must have a weight."""

    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, AnyRMSNorm) and norm.cast == "before_weight" and not norm.weight
        return "applies to the weight of the norm, but this norm has none; allowed: after_weight" if lacks else None

    return broken
