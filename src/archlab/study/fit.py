"""Fitting to a size: a study's base to each size of its ladder, an arm to a quantity that is held equal."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from archlab.config.components.multi_head import MultiHead
from archlab.config.core.merge import Raw
from archlab.config.identity import flatten, resolved
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.params import parameters
from archlab.pricing.work import computed_training_flops
from archlab.sizing.resize import resized
from archlab.study.arm import at_size
from archlab.study.schema import Budget, Equal, StudyConfig


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


def tuned_at(study: StudyConfig, size: int | None) -> Mapping[str, Any]:
    """Arm -> its tuned values at a size: those that are given for it, or else for all sizes."""
    plain = {name.removesuffix(at_size("", size)) if size else name: values for name, values in study.tuned.items()}
    return {name: study.tuned.get(at_size(name, size), values) for name, values in plain.items()}


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


LARGEST = {"model.mlp.d_ff": 1 << 20, "model.d_model": 1 << 20, "model.n_layers": 1 << 12}
"""Field -> the value at which the search gives up; layers are counted one by one."""


def quantity(equal: Equal) -> Callable[[Config], float]:
    """What is held equal: parameters, or training FLOPs per token, as computed."""
    if equal.parameters is not None:
        return lambda config: parameters(config.model).total
    return computed_training_flops


def tolerance(equal: Equal) -> float:
    """The largest relative difference allowed."""
    return equal.parameters if equal.parameters is not None else equal.flops or 0.0


def describe_equal(equal: Equal) -> str:
    """`parameters within 1%, by model.mlp.d_ff`."""
    return f"{_what(equal)} within {100 * tolerance(equal):.3g}%, by {equal.by}"


def matched(raw: Raw, equal: Equal, target: float) -> tuple[Config, dict[str, int]]:
    """The arm's config with the quantity at `target`, and the field's value if it had to be adjusted.

    An arm within the tolerance is left as it is. UserError when no value of the field brings it within the tolerance.
    """
    size = quantity(equal)
    config = build_config(raw)
    if _off(size(config), target) <= tolerance(equal):
        return config, {}
    now = flatten(resolved(config)).get(equal.by)
    if now is None:
        raise UserError(f"{size(config):,.0f} {_what(equal)} against {target:,.0f}, and it has no {equal.by} to adjust")
    nearest = now
    for step in _steps(equal.by, config):
        value = _nearest(lambda n: size(_unchecked(raw, equal.by, n)), target, step, LARGEST[equal.by])
        nearest = min(nearest, value, key=lambda n: _off(size(_unchecked(raw, equal.by, n)), target))
        if _off(size(_unchecked(raw, equal.by, value)), target) <= tolerance(equal):
            return build_config(overlay(raw, {equal.by: value}, Config)), {equal.by: value}
    raise UserError(
        f"{size(config):,.0f} {_what(equal)} against {target:,.0f}, and no {equal.by} brings it "
        f"within {100 * tolerance(equal):.3g}%; it is {now} now and {nearest} comes nearest "
        f"({size(_unchecked(raw, equal.by, nearest)):,.0f}); "
        "allow more, adjust another field, or leave `equal` out"
    )


def _what(equal: Equal) -> str:
    return "parameters" if equal.parameters is not None else "training FLOPs per token"


def _steps(field: str, config: Config) -> tuple[int, ...]:
    """Granularities to try: round widths first, for they compute faster."""
    if field == "model.n_layers":
        return (1,)
    attention = config.model.attention
    if field == "model.mlp.d_ff" or not isinstance(attention, MultiHead) or attention.head_dim:
        return (8, 1)
    heads = attention.n_heads
    return (8 * heads, (2 if config.model.position.kind == "rope" else 1) * heads)  # RoPE rotates pairs


def _nearest(size: Callable[[int], float], target: float, step: int, largest: int) -> int:
    """The multiple of `step`, up to about `largest`, whose size is nearest to the target; size grows with it."""
    high = 1
    while high * step < largest and size(high * step) < target:
        high *= 2
    low = max(high // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle * step) <= target else (low, middle)
    return min((low * step, high * step), key=lambda n: _off(size(n), target))


def _unchecked(raw: Raw, field: str, value: int) -> Config:
    """For counting only: a value that is tried on the way may break a rule."""
    return Config.model_validate(overlay(raw, {field: value}, Config))


def _off(size: float, target: float) -> float:
    return abs(size / target - 1)
