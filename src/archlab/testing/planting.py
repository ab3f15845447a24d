"""Ways to plant a mistake in a copy of archlab's reference."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from archlab.model.attention import MultiHeadAttention
from archlab.testing.reference import Reference

Plant = Callable[[Reference], None]


class Mistake(NamedTuple):
    """A known mistake."""

    name: str
    words: str
    """Sentence that says what the code does, and what it should do."""
    plants: Sequence[Plant]
    """Changes of archlab's reference that make this mistake. They differ in details, such as the number that replaces
    -inf."""


def in_attention(change: Callable[[MultiHeadAttention], None]) -> Plant:
    """Return a plant that calls `change` for all multi-head attention."""

    def plant(reference: Reference) -> None:
        for attention in reference.attentions():
            change(attention)

    return plant


def swap(module: nn.Module, first: str, second: str) -> None:
    """Exchange two submodules."""
    one, other = getattr(module, first), getattr(module, second)
    setattr(module, first, other)
    setattr(module, second, one)


def add_input(module: nn.Module) -> None:
    """Add the input of attention or an MLP to its output."""
    forward = module.forward
    module.__dict__["forward"] = lambda x, *others: x + forward(x, *others)
