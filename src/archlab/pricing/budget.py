"""Number of tokens, time and price of a training run, and the choice of how to divide the run among devices."""

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
from archlab.pricing.stage import PLAN_FORMAT
from archlab.pricing.training_plan import TrainingPlan, plan_training
from archlab.pricing.work import visible_training_flops

TOKENS_PER_PARAMETER = 20
"""Training tokens per parameter at which a given number of training FLOPs gives the lowest loss (Hoffmann 2022).

For a mixture of experts, only the parameters that a token uses count.
"""

FLOPS_PER_PARAMETER = 6
"""Training FLOPs per parameter and token, if only matrix products with weights count (Kaplan 2020)."""


class TokenBudget(Base):
    """Number of training tokens, and the training FLOPs for these tokens."""

    tokens: int
    flops: float
    """FLOPs of all forward and backward passes. In attention, only query-key pairs that the mask allows count."""
    is_rule: bool
    """Whether `tokens` comes from the rule of 20 tokens per parameter. Otherwise it comes from the config."""


class PublishedMfu(NamedTuple):
    """Model FLOPs utilization (MFU) of a published training run.

    MFU is the FLOPs of the model divided by the FLOPs that the devices could compute in the same time at peak speed.
    """

    model: str
    low: float
    high: float
    devices: str
    source: str
    """Key of the source in evidence/sources.yaml."""


PUBLISHED_MFU = (
    PublishedMfu("MT-NLG 530B", 0.302, 0.302, "A100", "chowdhery2022"),
    PublishedMfu("Llama 3.1 405B", 0.38, 0.43, "H100", "llama3"),
    PublishedMfu("PaLM 540B", 0.462, 0.462, "TPU v4", "chowdhery2022"),
)
"""Utilization of training runs, from table 3 of the PaLM paper and table 4 of the Llama 3 paper.

In attention, the PaLM paper also counts query-key pairs that the causal mask hides. archlab does not count them.
"""


class Spent(Base):
    """Time, price and utilization of a training run on the devices of a plan."""

    seconds: float
    price: float | None
    """Price of the run. null if the price of a device per hour is unknown."""
    mfu: float
    """Model FLOPs utilization: FLOPs of the token budget divided by the FLOPs that the devices could compute in
    `seconds` at peak speed."""


def rule_in_words(counts: Parameters) -> str:
    """Return the rule about training tokens as text: `20 per parameter`, or `20 per active parameter` for a mixture of
    experts."""
    return f"{TOKENS_PER_PARAMETER} per {'active parameter' if counts.idle else 'parameter'}"


def budgets(config: Config) -> list[TokenBudget]:
    """Return two token budgets: that of the config, if it sets one, and that of the rule of 20 tokens per parameter.
    The rule was measured with decoders, so it is left out for a model with an encoder."""
    train = resolve_train(config)
    per_token = visible_training_flops(config)
    from_config = [(train.trained, False)] if config.train.tokens else []
    best = TOKENS_PER_PARAMETER * parameters(config.model).active
    from_rule = [] if config.model.encoder else [(best, True)]
    return [TokenBudget(tokens=n, flops=per_token * n, is_rule=is_rule) for n, is_rule in (*from_config, *from_rule)]


def spent(
    budget: TokenBudget, plan: TrainingPlan, devices: int, device: Hardware, price_per_hour: float | None
) -> Spent:
    """Return the best-case time and price. Each step then takes as long as its computation or its communication,
    whichever is longer."""
    seconds = budget.tokens / plan.batch_tokens * plan.step
    price = None if price_per_hour is None else seconds / 3600 * devices * price_per_hour
    return Spent(seconds=seconds, price=price, mfu=budget.flops / (devices * device.speed(PLAN_FORMAT) * seconds))


def at_mfu(at_best: Spent, mfu: float) -> Spent:
    """Return the time and price of a run whose utilization is `mfu`. `at_best` is the best case of the run; the result
    is never better."""
    times = max(1.0, at_best.mfu / mfu)
    price = None if at_best.price is None else at_best.price * times
    return Spent(seconds=at_best.seconds * times, price=price, mfu=at_best.mfu / times)


HIGHEST_MFU = max(PUBLISHED_MFU, key=lambda published: published.high)
LOWEST_MFU = min(PUBLISHED_MFU, key=lambda published: published.low)


def at_published_mfu(at_best: Spent) -> tuple[Spent, Spent]:
    """Return the time and price of a run twice: at the highest and at the lowest published utilization. `at_best` is
    the best case of the run."""
    return at_mfu(at_best, HIGHEST_MFU.high), at_mfu(at_best, LOWEST_MFU.low)


class PlanPair(NamedTuple):
    """Two plans for one way to divide a run: without and with recomputation of layers."""

    plain: TrainingPlan
    recomputed: TrainingPlan
    """Plan in which layers keep only their inputs, and compute their other activations again in the backward pass."""

    @property
    def fitting(self) -> TrainingPlan | None:
        """The plan to use: `plain` if it fits into memory, otherwise `recomputed`. None if neither plan fits."""
        return next((plan for plan in self if plan.fits), None)


_AS_FAST = 1.01
"""A way to divide a run counts as one of the fastest if its step takes at most this many times the shortest step time.
Smaller differences are below the accuracy of the estimates."""


class ChosenWay(NamedTuple):
    """Best way to divide a training run among devices."""

    way: Parallel
    plan: TrainingPlan
    fastest: float
    """Shortest step time in seconds among all ways that fit into memory."""
    as_fast: list[TrainingPlan]
    """Plans of the other ways that count as fastest."""


def choose(plans_by_way: Mapping[Parallel, PlanPair]) -> ChosenWay | None:
    """Return the best way: among the fastest ways that fit into memory, the one with the shortest communication time.

    A way counts as fastest if its step takes at most 1% longer than the shortest step. Return None if no way fits, or
    if there is only one way.
    """
    fitting = {way: divided.fitting for way, divided in plans_by_way.items() if divided.fitting}
    if not fitting or len(plans_by_way) == 1:
        return None
    fastest = min(plan.step for plan in fitting.values())
    as_fast = {way: plan for way, plan in fitting.items() if plan.step <= _AS_FAST * fastest}
    way = min(as_fast, key=lambda way: as_fast[way].sending)
    return ChosenWay(way, as_fast.pop(way), fastest, [*as_fast.values()])


def ways(devices: int) -> list[Parallel]:
    """Return the ways to divide a run among `devices` devices that use only one dimension of parallelism."""
    return [Parallel(**{way: devices}) for way in WAYS] if devices > 1 else [Parallel()]


def divide(
    config: Config, partitions: Sequence[Parallel], device: Hardware
) -> tuple[dict[Parallel, PlanPair], list[str]]:
    """Return the plans for all possible partitions, and messages that say why the other partitions are impossible.

    Raise UserError if no partition is possible.
    """
    plans_by_way, refused = dict[Parallel, PlanPair](), dict[str, list[str]]()
    for parallel in partitions:
        try:
            plans_by_way[parallel] = PlanPair(
                *(plan_training(config, parallel, device, recompute=recompute) for recompute in (False, True))
            )
        except UserError as error:
            refused.setdefault(str(error), []).append(str(parallel))
    reasons = [f"{'; '.join(names)}: {reason}" for reason, names in refused.items()]
    if not plans_by_way:
        raise UserError("\n".join(reasons))
    return plans_by_way, reasons


def plans_as_json(
    config: Config,
    plans_by_way: Mapping[Parallel, PlanPair],
    refused: Sequence[str],
    device: Hardware,
    price: float | None,
) -> dict[str, Any]:
    """Return all plans as values for JSON, with unrounded numbers.

    For each plan, `spent` lists the time and price of each token budget. It is computed without recomputation of
    layers, or with recomputation if the run does not fit into memory otherwise.
    """
    token_budgets = budgets(config)
    chosen = choose(plans_by_way)
    plans = [
        {
            "parallel": asdict(way),
            **{name: plan.model_dump(mode="json") for name, plan in divided._asdict().items()},
            "chosen": chosen is not None and way == chosen.way,
            "recomputes": divided.fitting is not None and divided.fitting.recomputes,
            "spent": [at_best and at_best.model_dump(mode="json") for at_best in taken],
            "spent_at_published_mfu": [
                at_best and [slower.model_dump(mode="json") for slower in at_published_mfu(at_best)]
                for at_best in taken
            ],
        }
        for way, divided in plans_by_way.items()
        for taken in [
            [divided.fitting and spent(budget, divided.fitting, way.devices, device, price) for budget in token_budgets]
        ]
    ]
    return {
        "hardware": device.name,
        "price_per_hour": price,
        "budgets": [budget.model_dump(mode="json") for budget in token_budgets],
        "published_mfu": [published._asdict() for published in PUBLISHED_MFU],
        "plans": plans,
        "refused": refused,
    }
