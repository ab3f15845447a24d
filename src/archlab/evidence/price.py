"""What a choice costs: a small model with it, and without."""

from typing import Any

from archlab.config.base import Base
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.cost import units
from archlab.cost.flops import forward_flops
from archlab.cost.memory import kv_cache_bytes, recurrent_bytes
from archlab.cost.params import parameters
from archlab.evidence.topics import Topic
from archlab.exchange.configs import read_config

BASE = "tiny-llama"
CONTEXT = 4096
"""Tokens of text; the base is built for as many, so that tables of positions are as long."""


class Price(Base):
    """Of one model."""

    parameters: int
    active: int
    """Of these, how many one token makes use of."""
    flops: float
    """Forward, per token of a text of CONTEXT tokens."""
    state_bytes: int
    """Kept of such a text for decoding, in bfloat16: the cache and recurrent states."""


def prices(topic: Topic) -> tuple[Price, Price] | None:
    """With the choice and without it; None for what is no choice of the model."""
    if not any(path.startswith("model.") for path in topic.fields):
        return None
    return _price(configured(topic.fields)), _price(configured(topic.against))


def price_rows(chosen: Price, other: Price) -> list[tuple[str, str, str]]:
    """What is counted, with the choice and without, for people; empty where all of it reads the same."""
    rows = [("parameters", units.count(chosen.parameters), units.count(other.parameters))]
    if (chosen.parameters, other.parameters) != (chosen.active, other.active):
        rows.append(("of them used by a token", units.count(chosen.active), units.count(other.active)))
    rows.append(("FLOPs per token", units.si(chosen.flops), units.si(other.flops)))
    rows.append(("kept for decoding", units.binary(chosen.state_bytes), units.binary(other.state_bytes)))
    return rows if any(with_it != without for _, with_it, without in rows) else []


def configured(change: dict[str, Any]) -> Config:
    """The base with some fields changed."""
    raw = overlay(read_config(BASE), {"model.max_seq_len": CONTEXT}, Config)
    return build_config(overlay(raw, change, Config) if change else raw, (), f"{BASE} with {change}")


def _price(config: Config) -> Price:
    model, counted = config.model, parameters(config.model)
    return Price(
        parameters=counted.total,
        active=counted.active,
        flops=forward_flops(model, CONTEXT).total,
        state_bytes=kv_cache_bytes(model, CONTEXT, 1, 2) + recurrent_bytes(model, 1, 2),
    )
