"""Cost of a choice: a small model with it and without it."""

from collections.abc import Mapping
from typing import Any

from archlab.config.core.base import Base
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.evidence.topics import Topic
from archlab.exchange.configs import read_config
from archlab.pricing import units
from archlab.pricing.memory import kv_cache_bytes, recurrent_bytes
from archlab.pricing.params import parameters
from archlab.pricing.work import forward_flops

BASE = "tiny-llama"
CONTEXT = 4096
"""Tokens of text. The base is built for this length, so tables of positions are as long."""


class Price(Base):
    """Cost of one model."""

    parameters: int
    active: int
    """Number of parameters that one token uses."""
    flops: float
    """FLOPs of the forward pass per token, for a text of CONTEXT tokens."""
    state_bytes: int
    """Bytes kept for decoding such a text in bfloat16: the cache and recurrent states."""


def prices(topic: Topic) -> dict[str, Price]:
    """Return the costs with the choice and without it, and without it at equal parameters if the sizes differ.

    The result is empty for a topic that is not a choice of the model.
    """
    if not any(path.startswith("model.") for path in topic.fields):
        return {}
    compared = {"with it": topic.fields, "without": topic.against}
    if topic.resized:
        compared["equal size"] = topic.resized
    return {name: _price(configured(change)) for name, change in compared.items()}


def price_rows(found: Mapping[str, Price]) -> list[tuple[str, ...]]:
    """Return the rows of a table of costs. It is empty if no row shows a difference."""
    models = found.values()
    rows = [("parameters", *(units.count(price.parameters) for price in models))]
    if any(price.parameters != price.active for price in models):
        rows.append(("used per token", *(units.count(price.active) for price in models)))
    rows.append(("FLOPs per token", *(units.si(price.flops) for price in models)))
    rows.append(("kept for decoding", *(units.binary(price.state_bytes) for price in models)))
    return rows if any(len(set(counted)) > 1 for _, *counted in rows) else []


def equal_size(topic: Topic) -> str:
    """Return a description of the model of equal size, or "" if there is none."""
    changed = {path: value for path, value in topic.resized.items() if topic.against.get(path) != value}
    settings = " ".join(f"{path}={to_yaml_line(value)}" for path, value in changed.items())
    return f"equal size: without it, and {settings} for as many parameters" if settings else ""


def configured(change: dict[str, Any]) -> Config:
    """Return the base with some fields changed."""
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
