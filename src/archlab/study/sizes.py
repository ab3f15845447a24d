"""A study's base at every size of its ladder: the same proportions, the tokens and the rate that the rules give."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from archlab.config.core.merge import Raw
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.params import parameters
from archlab.pricing.units import count
from archlab.sizing.resize import resized
from archlab.study.schema import Budget, StudyConfig


class Sized(NamedTuple):
    """What a study is at one size."""

    size: int | None
    """Parameters; None where the study has one size, that of its base."""
    base: Raw
    study: StudyConfig
    """With the budget in tokens or FLOPs, and with the tuned values of this size."""


def at_sizes(study: StudyConfig, base: Raw) -> list[Sized]:
    """`base`: with what the study sets for all arms. UserError where it has no shape of one of the sizes."""
    try:
        config = build_config(base)
    except UserError:
        return [Sized(None, base, study)]  # the arms tell what is wrong
    if not study.sizes:
        return [Sized(None, base, _in_tokens(study, config))]
    return [_at(size, study, base, config) for size in study.sizes]


def at(name: str, size: int | None) -> str:
    """What an arm is called at a size: `layer at 3M`."""
    return name if size is None else f"{name} at {count(size)}"


def tuned_at(study: StudyConfig, size: int | None) -> Mapping[str, Any]:
    """Arm -> its tuned values at a size: those that are given for it, or else for all sizes."""
    plain = {name.removesuffix(at("", size)) if size else name: values for name, values in study.tuned.items()}
    return {name: study.tuned.get(at(name, size), values) for name, values in plain.items()}


def _at(size: int, study: StudyConfig, base: Raw, config: Config) -> Sized:
    change = resized(base, study.base, size)
    if study.rate_over_sizes == "inverse_width":
        if config.model.mup:
            found = "inverse_width, but with model.mup the rate falls with the width by itself"
            raise UserError(f"{study.base}: rate_over_sizes: {found}; allowed: same")
        rate = resolve_train(config).lr * config.model.d_model / change["model.d_model"]
        change["train.lr"] = float(f"{rate:.4g}")
    raw = overlay(base, change, Config)
    tuned = study.model_copy(update={"tuned": tuned_at(study, size)})
    return Sized(size, raw, _in_tokens(tuned, build_config(raw)))


def _in_tokens(study: StudyConfig, config: Config) -> StudyConfig:
    """The same study; tokens per parameter are counted."""
    if study.budget.tokens_per_parameter is None:
        return study
    tokens = round(study.budget.tokens_per_parameter * parameters(config.model).total)
    return study.model_copy(update={"budget": Budget(tokens=tokens)})
