"""Flattened files of rows of the grid, and of every value of every field, compute what the model computes.

This finds choices that `archlab flatten` forgets. Prefixes are the exception: they are refused by name.
"""

import itertools
from copy import deepcopy
from functools import cache
from typing import Any

import grid
import pytest
import torch
from test_every_setting import PATHS, Setting, meaning

from archlab.config.core.merge import Raw
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.layers import sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.flatten.write import flatten_model
from archlab.model.decoder import Decoder

CHUNK, LONGEST = 20, 2000
"""Layers that differ in everything need more lines than usually allowed."""
TRAINING_ONLY = ("init", "dropout", "mlp.balance", "mlp.router.correction.rate", "max_seq_len")
"""Settings that do not change the logits of given weights and a sequence that fits. For dropout, see
tests/parity/test_flatten.py."""


@cache
def file_of(model: ModelConfig) -> str:
    return flatten_model(model, title="grid", most_lines=LONGEST)


def refusal(config: Config) -> str:
    """Return the message that refuses to flatten the config, or an empty text."""
    try:
        file_of(config.model)
    except UserError as error:
        return str(error)
    return ""


def without_prefix(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return the row with causal instead of prefix visibility, which a flattened file does not support."""
    return tuple(text.replace("visibility=prefix", "visibility=causal") for text in row)


def gap(config: Config, model: Decoder) -> float:
    """Return the largest difference between the file's and the model's logits, in standard deviations of these."""
    names: dict[str, Any] = {}
    exec(compile(file_of(config.model), "grid", "exec"), names)
    flat, model, tokens = names["Decoder"]().eval(), deepcopy(model).float(), grid.tokens(2) % config.model.vocab_size
    flat.load_state_dict(model.state_dict())
    with torch.no_grad():
        wanted = model(tokens)
        # With a vocabulary of one token, all logits are equal. Then the unit is their size.
        return ((flat(tokens) - wanted).abs().max() / (wanted.std() + 1e-2 * wanted.abs().max())).item()


FLATTENED = grid.rows_with_each_override(3)
"""A row takes 0.2 s. The code of a value in a file does not depend on other values."""


@pytest.mark.parametrize("start", range(0, len(FLATTENED), CHUNK))
def test_the_flattened_file_gives_the_same_logits(start: int) -> None:
    for index in FLATTENED[start : start + CHUNK]:
        config, row = grid.config(index), grid.grid()[index]
        if not sees_as(config.model, "prefix"):
            assert gap(config, grid.randomized(config)) < 1e-3, row
            continue
        assert "  model.attention.visibility  prefix; allowed" in refusal(config), row
        config = build_config(grid.BASE, without_prefix(row))
        assert gap(config, grid.randomized(config)) < 1e-3, row


# --- every field of the schema --------------------------------------------------------------------------------


@cache
def bases() -> list[Raw]:
    """Return rows that differ much: each has a choice that those before it do not have.

    Rows whose layers are all alike come first, because their files are faster to write.
    """
    chosen, seen = list[Raw](), set[str]()
    rows = map(without_prefix, grid.grid())
    for row in sorted(rows, key=lambda row: any(text.startswith("model.layers") for text in row)):
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
    """Return what a setting does in flattened files.

    "works": the file changes and computes the same as the model. "refused": a message names the setting. "silent":
    neither, for all bases. "not valid": no config has the setting.
    """
    seen = "same"
    differing = (setting for setting in settings if setting.after not in setting.before)
    for setting, base in itertools.product(differing, bases()):
        is_now = changed(base, setting.after)
        was = next(filter(None, (changed(base, before) for before in setting.before)), None) if is_now else None
        if is_now is None:
            seen = "not valid" if seen == "same" else seen
        if is_now is None or was is None or meaning(was) == meaning(is_now):
            continue
        if message := refusal(is_now):
            parts = setting.path.split(".")
            names = [f"model.{'.'.join(parts[:n])}" for n in range(1, len(parts) + 1)]
            assert any(f"  {name} " in message or f"  {name}.kind " in message for name in names), message
            return "refused"
        if file_of(was.model) != file_of(is_now.model):
            assert gap(is_now, grid.randomized(is_now)) < 1e-3, setting
            return "works"
        seen = "silent"
    return seen


def few(values: list[str]) -> list[str]:
    """Return three of the numbers and all other values. A file writes all numbers in the same way."""
    numbers = [value for value in values if value[0].isdigit()]
    kept = {numbers[n] for n in (0, len(numbers) // 2, -1)} if numbers else set()
    return [value for value in values if value in kept or value not in numbers]


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith(TRAINING_ONLY)])
def test_every_setting_is_in_the_file_or_refused(path: str) -> None:
    results = {value: outcome(PATHS[path][value]) for value in few(list(PATHS[path]))}
    assert "silent" not in results.values(), results
    assert {"works", "refused", "not valid"} & set(results.values()) or set(results) == {"{}"}, results
