"""What a config means, however it was spelled: its resolved values, its hash, its difference from another."""

import hashlib
import json
from typing import Any

from archlab.config.core.merge import Raw, expand
from archlab.config.layers import resolve, resolve_layers
from archlab.config.schema import Config
from archlab.config.training import resolve_train

NO_EFFECT_ON_RESULT = (
    "train.eval_every", "train.checkpoint_every", "train.probe_every", "train.log", "train.keep", "train.recompute",
    "parallel",
)  # fmt: skip
"""Fields and sections that do not decide how a run ends, so they may change when it goes on."""


def resolved(config: Config) -> Raw:
    """Plain values with every derived field written out; loading them gives the same config again."""
    raw = config.model_dump(mode="json")
    whole = resolve(config.model).model_copy(update={"layers": resolve_layers(config.model)})
    raw["model"] = whole.model_dump(mode="json")
    if raw["model"]["layers"]:
        raw["model"]["layers"] = expand(raw["model"]["layers"])
    raw["train"] = resolve_train(config).model_dump(mode="json")
    return raw


def flatten(raw: Raw, at: str = "") -> Raw:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat: Raw = {}
    for key, value in raw.items():
        flat |= flatten(value, f"{at}{key}.") if isinstance(value, dict) and value else {f"{at}{key}": value}
    return flat


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted field -> its two values, for every resolved field in which they differ, section by section.

    None stands for a field that does not exist on one side.
    """
    left, right = flatten(resolved(a)), flatten(resolved(b))
    differing = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    sections = list(dict.fromkeys(key.rpartition(".")[0] for key in {**left, **right}))
    differing.sort(key=lambda key: sections.index(key.rpartition(".")[0]))
    return {key: (left.get(key), right.get(key)) for key in differing}


def config_hash(value: Any) -> str:
    """12 hex digits of the canonical JSON of plain values; a Config counts as what it resolves to."""
    plain = resolved(value) if isinstance(value, Config) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
