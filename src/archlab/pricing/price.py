"""The few numbers by which the costs of two models are compared."""

from collections.abc import Mapping

from archlab.config.core.base import Base
from archlab.config.schema import Config
from archlab.pricing import units
from archlab.pricing.memory import state_bytes
from archlab.pricing.params import parameters
from archlab.pricing.work import forward_flops


class Price(Base):
    """Cost of one model."""

    parameters: int
    active: int
    """Number of parameters that are used for one token."""
    flops: float
    """FLOPs of the forward pass per token."""
    state_bytes: int
    """Bytes of the KV cache and of recurrent states in bfloat16, for decoding one sequence."""


def price(config: Config, context: int) -> Price:
    """Return the cost of a model in a sequence of `context` tokens."""
    model, counted = config.model, parameters(config.model)
    return Price(
        parameters=counted.total,
        active=counted.active,
        flops=forward_flops(model, context).total,
        state_bytes=state_bytes(model, context),
    )


def price_rows(by_heading: Mapping[str, Price]) -> list[tuple[str, ...]]:
    """Return the rows of a cost table. The result is empty if all models have the same cost."""
    models = by_heading.values()
    rows = [("parameters", *(units.count(price.parameters) for price in models))]
    if any(price.parameters != price.active for price in models):
        rows.append(("used per token", *(units.count(price.active) for price in models)))
    rows.append(("forward FLOPs per token", *(units.si(price.flops) for price in models)))
    rows.append(("KV cache and states", *(units.binary(price.state_bytes) for price in models)))
    return rows if any(len(set(counted)) > 1 for _, *counted in rows) else []
