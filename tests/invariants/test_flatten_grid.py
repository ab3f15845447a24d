"""Every config of the pairwise grid, and every value of every field, flattened: a choice that `archlab flatten` forgets is
seen here. Each is in the file as it is in the model, or refused by name."""

from copy import deepcopy
from functools import cache
from typing import Any

import grid
import pytest
import torch

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.flatten.write import flatten
from archlab.model.decoder import Decoder

CHUNK, LONGEST = 40, 1000
"""Layers that differ in everything take more lines than a file for people has."""
OF_TRAINING = ("init", "dropout", "mlp.balance", "mlp.router.correction.rate")
"""What changes no logits of a model with given weights; tests/parity/test_flatten.py sees where dropout falls."""
MANY = 24
"""Configs that a value is laid over."""

Choice = tuple[str, str | tuple[str, ...]]
"""A factor of the grid and a value of it."""


def said(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def built(*overrides: str) -> Config | None:
    try:
        return build_config(grid.BASE, overrides)
    except UserError:
        return None


def refusal(config: Config) -> str:
    """Why the config is not flattened; nothing where it is."""
    try:
        flatten(config.model, "grid", LONGEST)
    except UserError as error:
        return str(error)
    return ""


@cache
def refused_choices() -> tuple[tuple[str, ...], ...]:
    """Values of the grid's factors that are refused even where everything else is plain."""
    heads = said(grid.FACTORS["heads"][0])
    alone = [(said(value), built(*heads, *said(value))) for values in grid.FACTORS.values() for value in values]
    return tuple(choice for choice, config in alone if config is not None and refusal(config))


@cache
def plain_rows() -> tuple[tuple[str, ...], ...]:
    """The grid's rows with the first value of each factor in the place of one that is refused, where the rules allow it."""
    first = {said(value): said(values[0]) for values in grid.FACTORS.values() for value in values}
    lone = ("model.block.mixer_multiplier=0.6",)  # nothing without a mixer
    found: dict[tuple[str, ...], None] = {}
    for row in grid.grid():
        for choice in (*refused_choices(), lone):
            at = next((i for i in range(len(row)) if row[i : i + len(choice)] == choice), None)
            row = row if at is None else (*row[:at], *first[choice], *row[at + len(choice) :])
        if built(*row) is not None:
            found[row] = None
    return tuple(found)


def gap(config: Config, model: Decoder) -> float:
    """Largest difference of the file's logits from the model's, in units of their deviation."""
    names: dict[str, Any] = {}
    exec(compile(flatten(config.model, "grid", LONGEST), "grid", "exec"), names)
    flat, model, tokens = names["Decoder"]().eval(), deepcopy(model).float(), grid.tokens(2) % config.model.vocab_size
    flat.load_state_dict(model.state_dict())
    with torch.no_grad():
        wanted = model(tokens)
        return ((flat(tokens) - wanted).abs().max() / wanted.std()).item()


def test_what_is_refused_is_what_no_fragment_writes() -> None:
    assert sorted(" ".join(choice) for choice in refused_choices()) == []


def test_every_row_is_flattened_or_has_a_choice_that_is_refused() -> None:
    for index, row in enumerate(grid.grid()):
        has_one = any(set(choice) <= set(row) for choice in refused_choices())
        assert bool(refusal(grid.config(index))) == has_one, row


@pytest.mark.parametrize("start", range(0, grid.AT_LEAST, CHUNK))
def test_the_flattened_file_gives_the_same_logits(start: int) -> None:
    for row in plain_rows()[start : start + CHUNK]:
        config = build_config(grid.BASE, row)
        assert gap(config, grid.randomised(config)) < 1e-3, row
