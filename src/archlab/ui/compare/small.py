"""Choices of a published model in a small model that trains on a laptop, and the sizes that they need there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archlab.config.identity import flatten, resolved
from archlab.config.schema import Config
from archlab.sizing.scale import rounded

SMALL = "tiny-llama"
"""Model that a study of differences changes."""

SIZES = frozenset({
    "vocab_size", "d_model", "n_layers", "max_seq_len", "n_heads", "n_kv_heads", "head_dim", "v_dim", "nope_dim",
    "rope_dim", "kv_rank", "q_rank", "d_ff", "experts", "active", "window", "scale", "base_width", "width",
})  # fmt: skip
"""Last parts of the fields that are sizes. The small model has its own."""

_OF_A_HEAD = ("nope_dim", "rope_dim", "v_dim")
_WIDTHS = ("d_ff", "kv_rank", "q_rank", "width", *_OF_A_HEAD)
_NEEDED = (*_WIDTHS, "experts", "active")
"""Sizes of components that the small model lacks. The others have defaults that depend on its width."""

_SCALES = ("model.attention.scale", "model.embedding.scale", "model.head.scale")
"""Factors that may follow from a width. They are choices, but their numbers are those of a width."""

_MOST_EXPERTS = 16
"""Largest number of experts of the small model."""

Values = Mapping[str, Any]
"""Values by dotted field."""


def is_size(path: str) -> bool:
    """Return whether a field is a size."""
    return path.rpartition(".")[2] in SIZES


def section_of_kind(path: str, values: Values) -> str:
    """Return the innermost section around a field that has a kind, or an empty string."""
    while path:
        path = path.rpartition(".")[0]
        if f"{path}.kind" in values:
            return path
    return ""


def in_small_model(config: Config, models: Sequence[Values]) -> dict[str, Any]:
    """Return the values of `model` with which a small model makes the choices of a config.

    `models` contains the small model, and then others whose choices it makes. A size is that of the first of them in
    which the component has the same kind. If there is none, widths keep their ratio to d_model. A mixture has at most
    16 experts, and the active ones keep their total width. If a scale follows from a width, it follows from the small
    model's.
    """
    values, small = flatten(resolved(config)), models[0]
    written = flatten(config.model.model_dump(mode="json"), "model.")
    scaled: dict[str, Any] = {}
    for path, value in values.items():
        if not path.startswith("model."):
            continue
        kind = f"{section_of_kind(path, values)}.kind"
        name = path.rpartition(".")[2]
        same = next((m for m in models if m.get(kind) == values.get(kind) and m.get(path) is not None), None)
        if path in _SCALES:
            scaled[path] = _scale(path, written[path], values, small)
        elif not is_size(path):
            scaled[path] = value
        elif name in _NEEDED and value is None:
            scaled[path] = None
        elif same:
            scaled[path] = same[path]
        elif name in _NEEDED:
            scaled[path] = _scaled(path, values, small)
        elif path in small:
            scaled[path] = small[path]
    return scaled


def _scale(path: str, written: Any, values: Values, small: Values) -> Any:
    """Return a scale of the small model. `written` is that of the config, before it was computed from a width.

    The scale of attention keeps its ratio to 1/sqrt(head_dim), unless it is 1, which scales nothing. That of the head
    is 1/sqrt(d_model) if it was so.
    """
    is_of_attention = path == "model.attention.scale"
    width = "model.attention.head_dim" if is_of_attention else "model.d_model"
    if not isinstance(written, int | float) or written == 1 or path == "model.embedding.scale" or width not in values:
        return written
    ratio = written * math.sqrt(values[width])
    if is_of_attention:
        return None if math.isclose(ratio, 1) else ratio / math.sqrt(small[width])
    return 1 / math.sqrt(small[width]) if math.isclose(ratio, 1) else written


def _scaled(path: str, values: Values, small: Values) -> int:
    section, _, name = path.rpartition(".")
    experts, active = values.get(f"{section}.experts", 1), values.get(f"{section}.active", 1)
    n = min(experts, _MOST_EXPERTS)
    n_active = max(min(2, active), round(active * n / experts))
    if name in ("experts", "active"):
        return n if name == "experts" else n_active
    factor = active / n_active
    if name in _OF_A_HEAD:
        factor = values[f"{section}.n_heads"] / small[f"{section}.n_heads"]
    width = small["model.d_model"]
    return rounded(values[path] * factor * width / values["model.d_model"], width)
