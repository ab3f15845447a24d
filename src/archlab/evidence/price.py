"""Cost of an architectural choice: a small model with the choice compared with one without it."""

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
"""Maximum sequence length of the base model, in tokens. Position tables have this length."""


class Price(Base):
    """Cost of one model."""

    parameters: int
    active: int
    """Number of parameters that are active for one token."""
    flops: float
    """FLOPs of the forward pass per token, for a sequence of CONTEXT tokens."""
    state_bytes: int
    """Bytes kept while decoding a sequence of CONTEXT tokens in bfloat16: the KV cache and recurrent states."""


def prices(topic: Topic) -> dict[str, Price]:
    """Return the cost of the model with the choice, and of the model without it.

    If their sizes differ, also return the cost of a model without the choice that has the same parameter count. The
    result is empty for a topic that is not a choice of the model.
    """
    if not any(path.startswith("model.") for path in topic.fields):
        return {}
    compared = {"with it": topic.fields, "without": topic.against}
    if topic.resized:
        compared["equal size"] = topic.resized
    return {name: _price(configured(change)) for name, change in compared.items()}


def price_rows(by_heading: Mapping[str, Price]) -> list[tuple[str, ...]]:
    """Return the rows of a cost table. The result is empty if no row shows a difference."""
    models = by_heading.values()
    rows = [("parameters", *(units.count(price.parameters) for price in models))]
    if any(price.parameters != price.active for price in models):
        rows.append(("used per token", *(units.count(price.active) for price in models)))
    rows.append(("forward FLOPs per token", *(units.si(price.flops) for price in models)))
    rows.append(("KV cache and state", *(units.binary(price.state_bytes) for price in models)))
    return rows if any(len(set(counted)) > 1 for _, *counted in rows) else []


def equal_size(topic: Topic) -> str:
    """Return a description of the model with the same parameter count, or "" if there is no such model."""
    changed = {path: value for path, value in topic.resized.items() if topic.against.get(path) != value}
    settings = " ".join(f"{path}={to_yaml_line(value)}" for path, value in changed.items())
    return f"equal size: without it, with {settings} (same parameter count)" if settings else ""


def configured(change: dict[str, Any]) -> Config:
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
