"""Identity of a config, independent of its spelling: its resolved values, its hash, and its differences from another
config."""

import hashlib
import json
from typing import Any

from archlab.config.core.merge import Raw, expand
from archlab.config.layers import resolve, resolve_encoder, resolve_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train

NO_EFFECT_ON_RESULT = (
    "train.eval_every", "train.checkpoint_every", "train.probe_every", "train.log", "train.keep", "train.recompute",
    "train.deterministic", "parallel",
)  # fmt: skip
"""Fields and sections that do not change the result of a run, so that they may change when the run continues."""


def resolved(config: Config) -> Raw:
    """Return plain values with every derived field filled in. Loading these values gives an equivalent config."""
    raw = config.model_dump(mode="json")
    return {**raw, "model": resolved_model(config.model), "train": resolve_train(config).model_dump(mode="json")}


def resolved_model(model: ModelConfig) -> Raw:
    """Return the plain values of a model with every derived field filled in."""
    parts = {"layers": resolve_layers(model), "encoder": resolve_encoder(model)}
    raw = resolve(model).model_copy(update=parts).model_dump(mode="json")
    if raw["layers"]:
        raw["layers"] = expand(raw["layers"])
    return raw


def flatten(raw: Raw, at: str = "") -> Raw:
    """Return the flat form of nested values: `{"a.b": 1}` for `{"a": {"b": 1}}`. All keys start with `at`."""
    flat: Raw = {}
    for key, value in raw.items():
        flat |= flatten(value, f"{at}{key}.") if isinstance(value, dict) and value else {f"{at}{key}": value}
    return flat


def differences(a: Config, b: Config, *, model_only: bool = False) -> dict[str, tuple[Any, Any]]:
    """Return the resolved fields in which the configs differ, section by section, with their values in `a` and in `b`.

    The value is None if a config does not have the field. With `model_only`, other fields than those of the model are
    left out.
    """
    left, right = flatten(resolved(a)), flatten(resolved(b))
    differing = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    sections = list(dict.fromkeys(key.rpartition(".")[0] for key in {**left, **right}))
    differing.sort(key=lambda key: sections.index(key.rpartition(".")[0]))
    return {key: (left.get(key), right.get(key)) for key in differing if key.startswith("model.") or not model_only}


def config_hash(value: Any) -> str:
    """Return the first 12 hex digits of the SHA-256 of plain values in canonical JSON. A Config is resolved first."""
    plain = resolved(value) if isinstance(value, Config) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
