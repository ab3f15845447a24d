"""Length of a training: rules of thumb, and the time and price of a number of tokens by a plan."""

from typing import NamedTuple

from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.flops import training_flops
from archlab.pricing.hardware import Hardware
from archlab.pricing.params import Parameters, parameters
from archlab.pricing.plan import PLANNED, Plan

TOKENS_PER_PARAMETER = 20
"""With so many tokens a FLOP budget is spent best (Hoffmann 2022); of a mixture, per parameter that a token uses."""

FLOPS_PER_PARAMETER = 6
"""Per token of training, by the rule that counts weights only (Kaplan 2020)."""


class Budget(Base):
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


def budgets(config: Config) -> list[Budget]:
    """Of as many tokens as the config asks for, where it does, and of as many as its parameters are worth."""
    train = resolve_train(config)
    per_token = training_flops(config.model, train.seq_len)
    said = [(train.trained, False)] if config.train.tokens else []
    best = TOKENS_PER_PARAMETER * parameters(config.model).active
    return [Budget(tokens=n, flops=per_token * n, is_rule=is_rule) for n, is_rule in (*said, (best, True))]


def spent(budget: Budget, plan: Plan, devices: int, device: Hardware, price_per_hour: float | None) -> Spent:
    """At best: every step takes as long as computing or sending does, whichever is longer."""
    seconds = budget.tokens / plan.batch_tokens * plan.step
    price = None if price_per_hour is None else seconds / 3600 * devices * price_per_hour
    return Spent(seconds=seconds, price=price, mfu=budget.flops / (devices * device.speed(PLANNED) * seconds))


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
