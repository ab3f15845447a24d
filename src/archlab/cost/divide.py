"""Ways of dividing a training among devices, each with layers kept and with layers computed again."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from archlab.config.schema import Config
from archlab.cost.budget import budgets, spent
from archlab.cost.hardware import Hardware
from archlab.cost.parallel import WAYS, Parallel
from archlab.cost.plan import Plan, plan
from archlab.errors import UserError


class Divided(NamedTuple):
    """One way of dividing."""

    plain: Plan
    recomputed: Plan
    """Layers keep their input alone, and are computed again."""

    @property
    def fitting(self) -> Plan | None:
        """What fits, with as little computed again as can be."""
        return next((one for one in self if one.fits), None)


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
    plans = [
        {
            "parallel": asdict(way),
            **{name: one.model_dump(mode="json") for name, one in divided._asdict().items()},
            "recomputes": divided.fitting is divided.recomputed,
            "spent": [
                divided.fitting and spent(budget, divided.fitting, way.devices, price).model_dump(mode="json")
                for budget in asked
            ],
        }
        for way, divided in found.items()
    ]
    return {
        "hardware": device.name,
        "price_per_hour": price,
        "budgets": [budget.model_dump(mode="json") for budget in asked],
        "plans": plans,
        "refused": refused,
    }
