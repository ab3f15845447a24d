"""Ways of dividing a training among devices, each with layers kept and with layers computed again."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.pricing.budget import PUBLISHED_MFU, at_published_mfu, budgets, spent
from archlab.pricing.hardware import Hardware
from archlab.pricing.parallel import WAYS, Parallel
from archlab.pricing.plan import Plan, plan


class Divided(NamedTuple):
    """One way of dividing."""

    plain: Plan
    recomputed: Plan
    """Layers keep their input alone, and are computed again."""

    @property
    def fitting(self) -> Plan | None:
        """The plan that fits and recomputes the least; None if none fits."""
        return next((one for one in self if one.fits), None)


_AS_FAST = 1.01
"""Ways whose steps take up to 1% more than the fastest are as fast: no estimate is better than that."""


class Choice(NamedTuple):
    """The way that training would best be divided."""

    way: Parallel
    plan: Plan
    fastest: float
    """Seconds of the fastest step of all ways that fit."""
    as_fast: list[Plan]
    """Plans of the other ways that fit and are as fast."""


def choose(found: Mapping[Parallel, Divided]) -> Choice | None:
    """Return the way that sends least, of those that fit and whose step takes at most 1% more than the fastest.

    None if no way fits, or if there is only one way.
    """
    fitting = {way: divided.fitting for way, divided in found.items() if divided.fitting}
    if not fitting or len(found) == 1:
        return None
    fastest = min(plan.step for plan in fitting.values())
    as_fast = {way: plan for way, plan in fitting.items() if plan.step <= _AS_FAST * fastest}
    way = min(as_fast, key=lambda way: as_fast[way].sending)
    return Choice(way, as_fast.pop(way), fastest, [*as_fast.values()])


def ways(devices: int) -> list[Parallel]:
    """So many devices, each way alone."""
    return [Parallel(**{way: devices}) for way in WAYS] if devices > 1 else [Parallel()]


def divide(config: Config, tried: Sequence[Parallel], device: Hardware) -> tuple[dict[Parallel, Divided], list[str]]:
    """Way -> plans; and why the other ways cannot be gone. UserError where none can."""
    found, refused = dict[Parallel, Divided](), dict[str, list[str]]()
    for parallel in tried:
        try:
            found[parallel] = Divided(*(plan(config, parallel, device, recompute=again) for again in (False, True)))
        except UserError as error:
            refused.setdefault(str(error), []).append(str(parallel))
    reasons = [f"{'; '.join(names)}: {reason}" for reason, names in refused.items()]
    if not found:
        raise UserError("\n".join(reasons))
    return found, reasons


def as_json(
    config: Config, found: Mapping[Parallel, Divided], refused: Sequence[str], device: Hardware, price: float | None
) -> dict[str, Any]:
    """All of it, exact; `spent` is what each budget takes with layers computed again where nothing else fits."""
    asked = budgets(config)
    chosen = choose(found)
    plans = [
        {
            "parallel": asdict(way),
            **{name: one.model_dump(mode="json") for name, one in divided._asdict().items()},
            "chosen": chosen is not None and way == chosen.way,
            "recomputes": divided.fitting is not None and divided.fitting.recomputes,
            "spent": [at_best and at_best.model_dump(mode="json") for at_best in taken],
            "spent_at_published_mfu": [
                at_best and [one.model_dump(mode="json") for one in at_published_mfu(at_best)] for at_best in taken
            ],
        }
        for way, divided in found.items()
        for taken in [
            [divided.fitting and spent(budget, divided.fitting, way.devices, device, price) for budget in asked]
        ]
    ]
    return {
        "hardware": device.name,
        "price_per_hour": price,
        "budgets": [budget.model_dump(mode="json") for budget in asked],
        "published_mfu": [published._asdict() for published in PUBLISHED_MFU],
        "plans": plans,
        "refused": refused,
    }
