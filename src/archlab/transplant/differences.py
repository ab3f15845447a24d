"""Differences that remain after all transformations: fields that change what the weights compute, and new tensors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from archlab.config.core.registry import kind_of
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten
from archlab.config.layers import PER_LAYER, PLACES, LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.transplant.weights import Architecture, Effect, Step, Weights, numbered

_IN_LAYERS = (*PER_LAYER, "layers", "encoder", "n_layers", "init")
"""Sections of a model that its layers contain, or that do not change what its weights compute."""
_NO_EFFECT = re.compile(r"(kind|dropout\..*|position\.(kept|table).*|max_seq_len|mup.*|.*\.balance\..*)")
"""Fields that do not change what the weights compute. `kind` is the name of a layer kind."""


class _Known(NamedTuple):
    field: str
    """Regular expression of the field."""
    effect: Effect
    detail: str
    before: object = ...
    """Value in the trained model for which this holds; `...` for any value."""
    after: object = ...


_KNOWN = (
    _Known(r".*bias", "exact", "new biases are 0", False, True),
    _Known(r".*norm\.weight", "exact", "new weights are 1", False, True),
    _Known(r"attention\.window", "exact", "in texts up to the length of the window", None),
    _Known(r"attention\.sinks", "approximate", "the score of a new sink is 0", False, True),
    _Known(r"attention\.qk_norm\.kind", "approximate", "the weights of a new norm are 1", "none"),
    _Known(r"position\.scaling.*", "approximate", "another scaling of the rotations"),
)
"""Fields whose effect is known. The first entry that fits counts."""


class Difference(NamedTuple):
    """Field with another value than in the trained model."""

    field: str
    before: object
    after: object


def differences(own: LayerConfig, wanted: LayerConfig) -> list[Difference]:
    """Return the fields in which two layers compute something else from the same weights."""
    return _differences(own.model_dump(mode="json"), wanted.model_dump(mode="json"))


def without_weights(weights: Weights, target: Architecture, wanted: Mapping[str, Tensor]) -> Iterator[Step]:
    """Yield a step for each remaining difference: a field that changes what the weights compute, or tensors that begin
    from the initial values of a new model."""
    layers: dict[Difference, list[str]] = {}
    for name, own, new in weights.pairs(target):
        for difference in differences(own, new):
            layers.setdefault(difference, []).append(name)
    for difference in _differences(_outside(weights.model), _outside(target.model)):
        layers.setdefault(difference, [])
    for (field, before, after), names in layers.items():
        known = next((known for known in _KNOWN if _fits(known, field, before, after)), None)
        effect, why = (known.effect, f" ({known.detail})") if known else ("approximate", "")
        where = f"{numbered(names)}: " if names else ""
        yield Step(f"model.{field}", effect, f"{where}{_text(before)} to {_text(after)}{why}")
    yield from _random(weights, wanted)


def with_other_kind(weights: Weights, target: Architecture) -> Weights:
    """Return the weights without the components whose kind differs from the target's. They begin from the initial
    values of a new model."""
    for place in PLACES:
        replaced = {
            name: own.model_copy(update={place: getattr(wanted, place)})
            for name, own, wanted in weights.pairs(target)
            if type(getattr(own, place)) is not type(getattr(wanted, place))
        }
        if not replaced:
            continue
        kinds = {
            (kind_of(type(getattr(own, place))), kind_of(type(getattr(wanted, place))))
            for name, own, wanted in weights.pairs(target)
            if name in replaced
        }
        detail = ", ".join(f"{before} to {after}" for before, after in sorted(kinds, key=str))
        dropped = [n for n in weights.tensors if any(n.startswith(f"{name}.{place}.") for name in replaced)]
        step = Step(f"model.{place}.kind", "new", f"{numbered(list(replaced))}: {detail}")
        weights = weights.changed(step, dropped=dropped, layers=replaced)
    return weights


def _outside(model: ModelConfig) -> dict[str, object]:
    return model.model_dump(mode="json", exclude=set(_IN_LAYERS))


def _differences(before: dict[str, object], after: dict[str, object]) -> list[Difference]:
    left, right = flatten(before), flatten(after)
    fields = [field for field in {**left, **right} if left.get(field) != right.get(field)]
    found = [Difference(field, _hashable(left.get(field)), _hashable(right.get(field))) for field in fields]
    return [difference for difference in found if not _NO_EFFECT.fullmatch(difference.field)]


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else str(value) if isinstance(value, dict) else value


def _fits(known: _Known, field: str, before: object, after: object) -> bool:
    values = ((known.before, before), (known.after, after))
    return re.fullmatch(known.field, field) is not None and all(a is ... or a == b for a, b in values)


def _text(value: object) -> str:
    return to_yaml_line(list(value) if isinstance(value, tuple) else value)


def _random(weights: Weights, wanted: Mapping[str, Tensor]) -> Iterator[Step]:
    new = [name for name in wanted if name not in weights.tensors]
    inert = [name for name in new if name.startswith(weights.inert)]
    others = [name for name in new if not name.startswith(weights.inert)]
    if inert:
        yield Step("new tensors", "exact", f"{_initial(inert)}, which do not change the logits")
    if others:
        yield Step("new tensors", "new", _initial(others))


def _initial(names: Sequence[str]) -> str:
    return f"{len(names)} tensors begin from initial values: {', '.join(names[:4])}"
