"""Holding a quantity equal between architectures by turning one knob."""

from collections.abc import Callable

from archlab.config.identity import flatten, resolved
from archlab.config.io import build_config
from archlab.config.merge import Raw
from archlab.config.schema import Config
from archlab.config.study_schema import Equal
from archlab.cost.flops import training_flops
from archlab.cost.params import parameters
from archlab.errors import UserError

LARGEST = 1 << 20
"""Where the search for a knob's value gives up."""


def quantity(equal: Equal) -> Callable[[Config], float]:
    """What is held equal: parameters, or training FLOPs per token."""
    if equal.parameters is not None:
        return lambda config: parameters(config.model).total
    return lambda config: training_flops(config.model, config.train.seq_len or config.model.max_seq_len)


def tolerance(equal: Equal) -> float:
    """The largest relative difference allowed."""
    return equal.parameters if equal.parameters is not None else equal.flops or 0.0


def in_words(equal: Equal) -> str:
    """`parameters within 1%, by model.mlp.d_ff`."""
    what = "parameters" if equal.parameters is not None else "training FLOPs per token"
    return f"{what} within {tolerance(equal):.3g}".replace("0.01", "1%") + f", by {equal.by}"


def matched(raw: Raw, equal: Equal, target: float, arm: str) -> tuple[Config, dict[str, int]]:
    """The arm's config with the quantity at `target`, and the knob's value if it had to be turned.

    An arm within the tolerance is left as it is. UserError when no value of the knob comes within it.
    """
    size = quantity(equal)
    config = build_config(raw, source=f"arm {arm}")
    if _off(size(config), target) <= tolerance(equal):
        return config, {}
    now = flatten(resolved(config))[equal.by]
    for step in _steps(equal.by, config):
        value = _nearest(lambda n: size(_with(raw, equal.by, n, arm)), target, step)
        found = _with(raw, equal.by, value, arm)
        if _off(size(found), target) <= tolerance(equal):
            return found, {equal.by: value}
    raise UserError(
        f"arm {arm}: {size(config):,.0f} against {target:,.0f}, and no {equal.by} brings it within "
        f"{tolerance(equal):.1%}; it is {now} now and {value} comes nearest ({size(found):,.0f}); "
        "allow more, turn another knob, or leave `equal` out"
    )


def _steps(knob: str, config: Config) -> tuple[int, ...]:
    """Granularities to try: round widths first, for they compute faster."""
    if knob == "model.d_model":
        return (config.model.attention.n_heads,)
    return (8, 1) if knob == "model.mlp.d_ff" else (1,)


def _nearest(size: Callable[[int], float], target: float, step: int) -> int:
    """The multiple of `step` whose size is nearest to the target; size grows with it."""
    low, high = 1, LARGEST // step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle * step) <= target else (low, middle)
    return min((low * step, high * step), key=lambda n: _off(size(n), target))


def _with(raw: Raw, knob: str, value: int, arm: str) -> Config:
    return build_config(raw, [f"{knob}={value}"], f"arm {arm} with {knob}={value}")


def _off(size: float, target: float) -> float:
    return abs(size / target - 1)
