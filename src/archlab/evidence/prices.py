"""Cost of an architectural choice. Two small models are compared: one with the choice, and one without it."""

from typing import Any

from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.io import build_config, overlay
from archlab.config.schema import Config
from archlab.evidence.topics import Topic
from archlab.exchange.configs import read_config
from archlab.pricing.price import Price, price

BASE = "tiny-llama"
CONTEXT = 4096
"""Maximum sequence length of the base model, in tokens. A table of position embeddings has one row per position."""


def prices(topic: Topic) -> dict[str, Price]:
    """Return the cost of a small model with the topic's choice, and of the same model without it.

    If these two models differ in size, also return the cost of a model without the choice whose parameter count is the
    same as with it. The result is empty if the topic is not a choice about the model.
    """
    if not any(path.startswith("model.") for path in topic.fields):
        return {}
    compared = {"with it": topic.fields, "without": topic.against}
    if topic.resized:
        compared["equal size"] = topic.resized
    return {name: price(configured(change), CONTEXT) for name, change in compared.items()}


def equal_size(topic: Topic) -> str:
    """Return a line about a model with the same parameter count that does not make the choice of the topic.

    Return "" if there is no such model.
    """
    changed = {path: value for path, value in topic.resized.items() if topic.against.get(path) != value}
    settings = " ".join(f"{path}={to_yaml_line(value)}" for path, value in changed.items())
    return f"equal size: without it, but with {settings}, for the same parameter count" if settings else ""


def configured(change: dict[str, Any]) -> Config:
    raw = overlay(read_config(BASE), {"model.max_seq_len": CONTEXT}, Config)
    return build_config(overlay(raw, change, Config) if change else raw, (), f"{BASE} with {change}")
