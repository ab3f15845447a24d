"""How long to train: rules of thumb, and what a training of so many tokens takes by a plan."""

from archlab.config.base import Base
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.cost.flops import training_flops
from archlab.cost.params import Parameters, parameters
from archlab.cost.plan import Plan

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


class Spent(Base):
    """What it takes on the devices of a plan, at best."""

    seconds: float
    price: float | None
    """null where the price of a device and hour is not said."""


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


def spent(budget: Budget, plan: Plan, devices: int, price_per_hour: float | None) -> Spent:
    """Every step takes as long as computing or sending does, whichever is longer."""
    seconds = budget.tokens / plan.batch_tokens * max(plan.computing, plan.sending)
    return Spent(seconds=seconds, price=None if price_per_hour is None else seconds / 3600 * devices * price_per_hour)
