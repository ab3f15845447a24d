"""Validation of raw values. The result is a valid config or an error that reports all wrong types, wrong names and
broken rules at once."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from archlab.config.core.base import Base
from archlab.config.core.merge import Raw, merge, without
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import MISSING, Problem, explain, is_under, raise_problems
from archlab.config.rules.encoder_rules import (
    ENCODER_CONFIG_RULES,
    ENCODER_LAYER_RULES,
    ENCODER_RULES,
    encoder_problems,
)
from archlab.config.rules.layer_kinds import layer_problems, replaced_in_every_layer
from archlab.config.rules.layer_rules import LAYER_RULES
from archlab.config.rules.run_rules import CONFIG_RULES, MODEL_RULES
from archlab.config.schema import Config
from archlab.errors import UserError

Schema = TypeVar("Schema", bound=BaseModel)

_STAND_IN: Raw = {"model": {"vocab_size": 256, "d_model": 64, "n_layers": 2, "attention": {"n_heads": 4}}}
"""Values that replace missing or wrong required fields, so that the rules can check all other fields."""


class _ModelAlone(Base):
    """Config with a model but without a run, so that only the rules of the model are checked."""

    model: ModelConfig


def validate(schema: type[Schema], raw: Raw, source: str, known: Sequence[Problem] = ()) -> Schema:
    """Return `raw` as a config of class `schema`.

    Raise a ConfigError that lists the problems in `known` and then all wrong types, wrong names and broken rules.
    """
    raw = merge({}, raw, schema)
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        problems = [*known, *explain(error, schema, raw)]
        if schema is Config:  # the rules can still check the other fields
            bad = [problem.path for problem in problems]
            with suppress(ValidationError, UserError):
                rest = merge(_STAND_IN, without(raw, bad), Config)
                problems += broken_rules(Config.model_validate(rest), bad)
            if "extends" in raw:  # the user expects the missing fields from the other file
                problems = [problem for problem in problems if problem.message != MISSING]
        raise_problems(problems, source)
        raise
    match config:
        case Config():
            rules = broken_rules(config)
        case _ModelAlone(model=model):
            rules = _model_problems(model) or list(replaced_in_every_layer(model))
        case _:
            rules = []
    raise_problems([*known, *rules], source)
    return config


def check_model(model: ModelConfig) -> None:
    """Raise ConfigError if a model has a wrong value or breaks a rule.

    A model that was read from a file has passed these checks. A model made in Python has not: its constructor checks no
    rules, and `model_copy` checks nothing.
    """
    validate(_ModelAlone, {"model": model.model_dump(warnings=False)}, "ModelConfig")


def broken_rules(config: Config, bad: Sequence[str] = ()) -> list[Problem]:
    """Return a problem for each rule that a config breaks. Skip the rules that read a field in `bad`."""
    problems = _model_problems(config.model, bad)
    for rule in (*CONFIG_RULES, *ENCODER_CONFIG_RULES):
        if not is_under(rule.reads, bad) and (message := rule.broken(config)):
            problems.append(Problem(rule.field, message))
    return problems or ([] if bad else list(replaced_in_every_layer(config.model)))


def _model_problems(model: ModelConfig, bad: Sequence[str] = ()) -> list[Problem]:
    layer_rules, model_rules = (
        [rule for rule in rules if not is_under([f"model.{field}" for field in rule.reads], bad)]
        for rules in ((*LAYER_RULES, *ENCODER_LAYER_RULES), (*MODEL_RULES, *ENCODER_RULES))
    )
    of_encoder = [] if is_under(["model.encoder"], bad) else list(encoder_problems(model, layer_rules))
    if of_encoder:  # the other rules need a valid encoder
        model = model.model_copy(update={"encoder": None})
    broken = [Problem(f"model.{rule.field}", m) for rule in model_rules if (m := rule.broken(model))]
    return [*layer_problems(model, layer_rules), *broken, *of_encoder]
