"""What a rule between fields is, and what several rules ask."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any, Generic, TypeVar

from archlab.config.components.norm import AnyRMSNorm, WeightedNorm
from archlab.config.model_schema import ModelConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    """It names the field it blames and the fields it reads; `broken` says what was found and what is allowed, or None
    when the rule holds. It is asked only when all those fields are valid by themselves: one mistake is reported once.
    """

    field: str
    reads: tuple[str, ...]
    broken: Callable[[T], str | None]


def divisors(n: int) -> str:
    """All divisors of n, as a list for people."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return ", ".join(map(str, sorted({*small, *(n // d for d in small)})))


def needs_a_norm(field: str) -> Callable[[ModelConfig], str | None]:
    """A rule: where the field asks for a norm, the model has one."""
    section, name = field.split(".")

    def broken(m: ModelConfig) -> str | None:
        asked = getattr(getattr(m, section), name, False)
        return "would be a norm of model.norm.kind, but that is none" if asked and m.norm.kind == "none" else None

    return broken


def offset_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    """A rule: a norm that adds 1 to its weight has one."""

    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, WeightedNorm) and norm.unit_offset and not norm.weight
        return "concerns the norm's weight, but this norm has none; allowed: false" if lacks else None

    return broken


def cast_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    """A rule: a norm that is rounded before its weight has one."""

    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, AnyRMSNorm) and norm.cast == "before_weight" and not norm.weight
        return "concerns the norm's weight, but this norm has none; allowed: after_weight" if lacks else None

    return broken
