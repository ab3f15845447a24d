"""Scale a study's base to each model size, and adjust each arm to match the quantity of `equal`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from archlab.config.components.multi_head import MultiHead
from archlab.config.core.base import Overrides
from archlab.config.core.merge import Raw, expand, merge_overrides
from archlab.config.identity import flatten, resolved
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.params import parameters
from archlab.pricing.work import computed_training_flops
from archlab.sizing.resize import resized
from archlab.study.arm import name_at_size
from archlab.study.schema import Budget, Equal, StudyConfig


class Sized(NamedTuple):
    """A study at one model size."""

    size: int | None
    """Parameter count; None if the study has no `sizes`."""
    base: Raw
    study: StudyConfig
    """The study with the arms and the tuned values of this size. A budget in tokens per parameter is converted to
    tokens."""


def at_sizes(study: StudyConfig, base: Raw) -> list[Sized]:
    """Return the study at each of its sizes.

    `base` is the study's base with the changes in `set`. Raise UserError if the base cannot be scaled to one of the
    sizes.
    """
    try:
        config = build_config(base)
    except UserError:
        return [Sized(None, base, study)]  # the arms report the problem
    if not study.sizes:
        return [Sized(None, base, _in_tokens(study, config))]
    return [_at(size, study, base, config) for size in study.sizes]


def arms_at(study: StudyConfig, size: int) -> dict[str, Overrides]:
    """Return the overrides of each arm at a size."""
    arms = dict(study.arms)
    for name, own in study.arms.items():
        if further := study.at_size.get(name_at_size(name, size)):
            arms[name] = flatten(merge_overrides(expand(own), expand(further), Config))
    return arms


def tuned_at(study: StudyConfig, size: int | None) -> Mapping[str, Any]:
    """Return the tuned values of each arm at a size. Values for this size take precedence over values for all sizes."""
    plain = {
        name.removesuffix(name_at_size("", size)) if size else name: values for name, values in study.tuned.items()
    }
    return {name: study.tuned.get(name_at_size(name, size), values) for name, values in plain.items()}


def _at(size: int, study: StudyConfig, base: Raw, config: Config) -> Sized:
    change = resized(base, study.base, size)
    if study.rate_over_sizes == "inverse_width":
        if config.model.mup:
            current = "inverse_width, but model.mup already scales the rate with the width"
            raise UserError(f"{study.base}: rate_over_sizes is {current}; set it to same")
        rate = resolve_train(config).lr * config.model.d_model / change["model.d_model"]
        change["train.lr"] = float(f"{rate:.4g}")
    raw = overlay(base, change, Config)
    sized = study.model_copy(update={"arms": arms_at(study, size), "tuned": tuned_at(study, size)})
    return Sized(size, raw, _in_tokens(sized, build_config(raw)))


def _in_tokens(study: StudyConfig, config: Config) -> StudyConfig:
    if study.budget.tokens_per_parameter is None:
        return study
    tokens = round(study.budget.tokens_per_parameter * parameters(config.model).total)
    return study.model_copy(update={"budget": Budget(tokens=tokens)})


LARGEST = {"model.mlp.d_ff": 1 << 20, "model.d_model": 1 << 20, "model.n_layers": 1 << 12}
"""Approximate largest value that the search tries, for each field that can be adjusted."""


def quantity_function(equal: Equal) -> Callable[[Config], float]:
    """Return the function that computes the quantity of `equal` for a config: the parameter count, or the training
    FLOPs per token. The FLOPs include masked query-key pairs that the kernel computes."""
    if equal.parameters is not None:
        return lambda config: parameters(config.model).total
    return computed_training_flops


def tolerance(equal: Equal) -> float:
    """Return the largest allowed relative difference from the first arm in the quantity of `equal`."""
    return equal.parameters if equal.parameters is not None else equal.flops or 0.0


def describe_equal(equal: Equal) -> str:
    """Describe `equal` in words, for example `parameters within 1%, by model.mlp.d_ff`."""
    return f"{_quantity_name(equal)} within {100 * tolerance(equal):.3g}%, by {equal.by}"


def match_config(raw: Raw, equal: Equal, target: float) -> tuple[Config, dict[str, int]]:
    """Return the arm's config with `equal.by` adjusted so that the quantity of `equal` is near `target`. Also return
    the adjusted field with its value.

    An arm that is already within the tolerance is not changed. Raise UserError if no value of the field brings the arm
    within the tolerance.
    """
    size = quantity_function(equal)
    config = build_config(raw)
    if _relative_error(size(config), target) <= tolerance(equal):
        return config, {}
    current = flatten(resolved(config)).get(equal.by)
    difference = f"has {size(config):,.0f} {_quantity_name(equal)} instead of {target:,.0f}"
    if current is None:
        raise UserError(f"{difference}, and it has no {equal.by} to adjust")
    nearest = current
    for step in _steps(equal.by, config):
        value = _nearest(lambda n: size(_unchecked(raw, equal.by, n)), target, step, LARGEST[equal.by])
        nearest = min(nearest, value, key=lambda n: _relative_error(size(_unchecked(raw, equal.by, n)), target))
        if _relative_error(size(_unchecked(raw, equal.by, value)), target) <= tolerance(equal):
            return build_config(overlay(raw, {equal.by: value}, Config)), {equal.by: value}
    raise UserError(
        f"{difference}, and no value of {equal.by} brings it within {100 * tolerance(equal):.3g}%; "
        f"it is {current} now, and {nearest} comes nearest ({size(_unchecked(raw, equal.by, nearest)):,.0f}); "
        "allow a larger difference, or adjust another field"
    )


def _quantity_name(equal: Equal) -> str:
    return "parameters" if equal.parameters is not None else "training FLOPs per token"


def _steps(field: str, config: Config) -> tuple[int, ...]:
    """Return the step sizes of the search, starting with the largest. Widths that are multiples of 8 are tried first,
    because they compute faster."""
    if field == "model.n_layers":
        return (1,)
    attention = config.model.attention
    if field == "model.mlp.d_ff" or not isinstance(attention, MultiHead) or attention.head_dim:
        return (8, 1)
    heads = attention.n_heads
    return (8 * heads, (2 if config.model.position.kind == "rope" else 1) * heads)  # RoPE rotates pairs


def _nearest(size: Callable[[int], float], target: float, step: int, largest: int) -> int:
    """Return the multiple of `step` for which `size` is nearest to `target`. Multiples up to about `largest` are tried.
    `size` must be an increasing function."""
    high = 1
    while high * step < largest and size(high * step) < target:
        high *= 2
    low = max(high // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle * step) <= target else (low, middle)
    return min((low * step, high * step), key=lambda n: _relative_error(size(n), target))


def _unchecked(raw: Raw, field: str, value: int) -> Config:
    """Return the config with this value, without the checks of `build_config`. The config is used only to count
    parameters and FLOPs, and values that the search tries may break a rule."""
    return Config.model_validate(overlay(raw, {field: value}, Config))


def _relative_error(size: float, target: float) -> float:
    return abs(size / target - 1)
