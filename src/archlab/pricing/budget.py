"""Length, time and price of a training, and the ways of dividing it among devices."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.hardware import Hardware
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.partition import WAYS, Parallel
from archlab.pricing.training_plan import PLAN_FORMAT, TrainingPlan, plan_training
from archlab.pricing.work import training_flops

TOKENS_PER_PARAMETER = 20
"""With so many tokens a FLOP budget is spent best (Hoffmann 2022); of a mixture, per parameter that a token uses."""

FLOPS_PER_PARAMETER = 6
"""Per token of training, by the rule that counts weights only (Kaplan 2020)."""


class TokenBudget(Base):
    """A training of so many tokens."""

    tokens: int
    flops: float
    """Forward and backward, over visible pairs."""
    is_rule: bool
    """Whether the tokens are those of the rule, 20 per parameter, and not what the config says."""


class PublishedMfu(NamedTuple):
    """Model FLOPs utilization of a published training: its model FLOPs over what its devices could do in that time."""

    model: str
    low: float
    high: float
    devices: str
    source: str
    """Key in evidence/sources.yaml."""


PUBLISHED_MFU = (
    PublishedMfu("MT-NLG 530B", 0.302, 0.302, "A100", "chowdhery2022"),
    PublishedMfu("Llama 3.1 405B", 0.38, 0.43, "H100", "llama3"),
    PublishedMfu("PaLM 540B", 0.462, 0.462, "TPU v4", "chowdhery2022"),
)
"""Table 3 of PaLM's paper and table 4 of Llama 3's. PaLM counts hidden pairs of tokens too; here visible ones alone."""


class Spent(Base):
    """Time, price and utilization of a training on the devices of a plan."""

    seconds: float
    price: float | None
    """null where the price of a device and hour is not said."""
    mfu: float
    """Model FLOPs utilization: FLOPs of the budget over what the devices could do in that time."""


def rule_in_words(counts: Parameters) -> str:
    """How many tokens for each parameter, of a mixture for each that a token uses."""
    return f"{TOKENS_PER_PARAMETER} per {'active parameter' if counts.idle else 'parameter'}"


def budgets(config: Config) -> list[TokenBudget]:
    """Of as many tokens as the config asks for, where it does, and of as many as its parameters are worth."""
    train = resolve_train(config)
    per_token = training_flops(config.model, train.seq_len)
    said = [(train.trained, False)] if config.train.tokens else []
    best = TOKENS_PER_PARAMETER * parameters(config.model).active
    return [TokenBudget(tokens=n, flops=per_token * n, is_rule=is_rule) for n, is_rule in (*said, (best, True))]


def spent(
    budget: TokenBudget, plan: TrainingPlan, devices: int, device: Hardware, price_per_hour: float | None
) -> Spent:
    """At best: every step takes as long as computing or sending does, whichever is longer."""
    seconds = budget.tokens / plan.batch_tokens * plan.step
    price = None if price_per_hour is None else seconds / 3600 * devices * price_per_hour
    return Spent(seconds=seconds, price=price, mfu=budget.flops / (devices * device.speed(PLAN_FORMAT) * seconds))


def at_mfu(at_best: Spent, mfu: float) -> Spent:
    """Return what the same training takes at that utilization; no less than at best."""
    times = max(1.0, at_best.mfu / mfu)
    price = None if at_best.price is None else at_best.price * times
    return Spent(seconds=at_best.seconds * times, price=price, mfu=at_best.mfu / times)


HIGHEST_MFU = max(PUBLISHED_MFU, key=lambda published: published.high)
LOWEST_MFU = min(PUBLISHED_MFU, key=lambda published: published.low)


def at_published_mfu(at_best: Spent) -> tuple[Spent, Spent]:
    """Return what the same training takes at the highest and at the lowest published utilization."""
    return at_mfu(at_best, HIGHEST_MFU.high), at_mfu(at_best, LOWEST_MFU.low)


class PlanPair(NamedTuple):
    """Plans for one way of dividing, without and with recomputing layers."""

    plain: TrainingPlan
    recomputed: TrainingPlan
    """Layers keep their input alone, and are computed again."""

    @property
    def fitting(self) -> TrainingPlan | None:
        """The plan that fits and recomputes the least; None if none fits."""
        return next((one for one in self if one.fits), None)


_AS_FAST = 1.01
"""Ways whose steps take up to 1% more than the fastest are as fast: no estimate is better than that."""


class ChosenWay(NamedTuple):
    """The way that training would best be divided."""

    way: Parallel
    plan: TrainingPlan
    fastest: float
    """Seconds of the fastest step of all ways that fit."""
    as_fast: list[TrainingPlan]
    """Plans of the other ways that fit and are as fast."""


def choose(found: Mapping[Parallel, PlanPair]) -> ChosenWay | None:
    """Return the way that sends least, of those that fit and whose step takes at most 1% more than the fastest.

    None if no way fits, or if there is only one way.
    """
    fitting = {way: divided.fitting for way, divided in found.items() if divided.fitting}
    if not fitting or len(found) == 1:
        return None
    fastest = min(plan.step for plan in fitting.values())
    as_fast = {way: plan for way, plan in fitting.items() if plan.step <= _AS_FAST * fastest}
    way = min(as_fast, key=lambda way: as_fast[way].sending)
    return ChosenWay(way, as_fast.pop(way), fastest, [*as_fast.values()])


def ways(devices: int) -> list[Parallel]:
    """So many devices, each way alone."""
    return [Parallel(**{way: devices}) for way in WAYS] if devices > 1 else [Parallel()]


def divide(config: Config, tried: Sequence[Parallel], device: Hardware) -> tuple[dict[Parallel, PlanPair], list[str]]:
    """Way -> plans; and why the other ways cannot be gone. UserError where none can."""
    found, refused = dict[Parallel, PlanPair](), dict[str, list[str]]()
    for parallel in tried:
        try:
            found[parallel] = PlanPair(
                *(plan_training(config, parallel, device, recompute=again) for again in (False, True))
            )
        except UserError as error:
            refused.setdefault(str(error), []).append(str(parallel))
    reasons = [f"{'; '.join(names)}: {reason}" for reason, names in refused.items()]
    if not found:
        raise UserError("\n".join(reasons))
    return found, reasons


def plans_as_json(
    config: Config, found: Mapping[Parallel, PlanPair], refused: Sequence[str], device: Hardware, price: float | None
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
