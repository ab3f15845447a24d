"""Every config of the pairwise grid, and every value of every field, flattened: a choice that `archlab flatten` forgets is
seen here. Each is in the file as it is in the model, or refused by name."""

import itertools
from copy import deepcopy
from functools import cache
from typing import Any

import grid
import pytest
import torch
from test_every_setting import PATHS, Setting, meaning

from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.merge import Raw
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.flatten.write import flatten
from archlab.model.decoder import Decoder

CHUNK, LONGEST = 40, 1000
"""Layers that differ in everything take more lines than a file for people has."""
OF_TRAINING = ("init", "dropout", "mlp.balance", "mlp.router.correction.rate", "max_seq_len")
"""What changes no logits of a model with given weights and a text that fits; tests/parity/test_flatten.py sees where dropout falls."""


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
        # With a vocabulary of one token all logits are the same: then by their size.
        return ((flat(tokens) - wanted).abs().max() / (wanted.std() + 1e-2 * wanted.abs().max())).item()


def test_what_is_refused_is_what_no_fragment_writes() -> None:
    heads = said(grid.FACTORS["heads"][0])
    messages = [refusal(build_config(grid.BASE, (*heads, *choice))) for choice in refused_choices()]
    assert {line.split()[0] for message in messages for line in message.splitlines()[1:]} == {
        "model.attention.gate", "model.attention.kind", "model.attention.sinks", "model.attention.temperature",
        "model.block.mixer_multiplier", "model.mixer.kind", "model.mlp.kind",
    }  # fmt: skip


def test_every_row_is_flattened_or_has_a_choice_that_is_refused() -> None:
    for index, row in enumerate(grid.grid()):
        has_one = any(set(choice) <= set(row) for choice in refused_choices())
        assert bool(refusal(grid.config(index))) == has_one, row


@pytest.mark.parametrize("start", range(0, len(grid.grid()), CHUNK))
def test_the_flattened_file_gives_the_same_logits(start: int) -> None:
    for row in plain_rows()[start : start + CHUNK]:
        config = build_config(grid.BASE, row)
        assert gap(config, grid.randomised(config)) < 1e-3, row


# --- every field of the schema --------------------------------------------------------------------------------


@cache
def bases() -> list[Raw]:
    """Plain rows that differ much: each has a choice that those before it lack."""
    chosen, seen = list[Raw](), set[str]()
    for row in plain_rows():
        if not set(row) <= seen:
            chosen.append(overlay(grid.BASE, parse_overrides(row)[0], Config))
            seen.update(row)
    return chosen


def changed(base: Raw, change: tuple[tuple[str, Any], ...]) -> Config | None:
    try:
        for path, value in change:
            base = overlay(base, {f"model.{path}": value}, Config)
        return build_config(base)
    except UserError:
        return None


def outcome(settings: list[Setting]) -> str:
    """works: the file changes, and is the model; refused: by name; silent: nothing of both, wherever it is laid; not valid:
    no config has it."""
    seen = "same"
    differing = (setting for setting in settings if setting.after not in setting.before)
    for setting, base in itertools.product(differing, bases()):
        is_now = changed(base, setting.after)
        was = next(filter(None, (changed(base, before) for before in setting.before)), None) if is_now else None
        if is_now is None:
            seen = "not valid" if seen == "same" else seen
        if is_now is None or was is None or meaning(was) == meaning(is_now):
            continue
        if said_so := refusal(is_now):
            parts = setting.path.split(".")
            named = [f"model.{'.'.join(parts[:n])}" for n in range(1, len(parts) + 1)]
            assert any(f"  {name} " in said_so or f"  {name}.kind " in said_so for name in named), said_so
            return "refused"
        if flatten(was.model, "grid", LONGEST) != flatten(is_now.model, "grid", LONGEST):
            assert gap(is_now, grid.randomised(is_now)) < 1e-3, setting
            return "works"
        seen = "silent"
    return seen


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith(OF_TRAINING)])
def test_every_setting_is_in_the_file_or_refused(path: str) -> None:
    results = {value: outcome(settings) for value, settings in PATHS[path].items()}
    assert "silent" not in results.values(), results
    assert {"works", "refused", "not valid"} & set(results.values()) or set(results) == {"{}"}, results
