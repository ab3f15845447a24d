"""Differences that remain after all transformations: fields that change what the weights compute, and new tensors."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from archlab.config.components.position import T5
from archlab.config.core.registry import kind_of
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import flatten
from archlab.config.layers import PER_LAYER, PLACES, LayerConfig, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.transplant.limits import limit
from archlab.transplant.norm_sites import outer_norms
from archlab.transplant.weights import ENCODER, Architecture, Effect, Step, Weights, numbered

_IN_LAYERS = (*PER_LAYER, "layers", "encoder", "n_layers", "max_seq_len", "init", "mup")
"""Sections of a model that its layers contain, or that do not change what its weights compute."""
_NO_EFFECT = re.compile(r"kind|norm\.alpha|dropout\..*|.*\.balance\..*")
"""Fields of a layer that do not change what the weights compute. `kind` is the name of a layer kind, and `norm.alpha`
an initial value."""


class _Known(NamedTuple):
    field: str
    """Regular expression of the field."""
    effect: Effect | None
    """Effect of the change. None if the weights would mean nothing after it, so that it is refused."""
    detail: str
    before: object = ...
    """Value in the trained model for which this holds; `...` for any value."""
    after: object = ...


_HEADS = "the trained features are in heads of other sizes"
_KNOWN = (
    _Known(r".*\bcast", "exact", "only the rounding in 16-bit dtypes changes"),
    _Known(r"embedding\.round_scale", "exact", "only the rounding in 16-bit dtypes changes"),
    _Known(r"attention\.visibility", "exact", "in texts without a prefix", "causal", "prefix"),
    _Known(r"attention\.visibility", "approximate", "exact in texts without a prefix", "prefix", "causal"),
    _Known(r"mlp\.router\.correction\.rate", "exact", "the new biases of the experts are 0", None),
    _Known(r"mlp\.router\.correction\.rate", "approximate", "the biases of the experts are lost", after=None),
    _Known(r"mlp\.router\.correction\.rate", "exact", "only training changes"),
    _Known(r".*bias", "approximate", "the values of the biases are lost", True, False),
    _Known(r".*sinks", "approximate", "the score of a new sink is 0", False, True),
    _Known(r".*qk_norm\.kind", "approximate", "the weights of the new norms are 1", "none"),
    _Known(r".*qk_norm\.weight", None, "no matrix can take over the weights of these norms", True, False),
    _Known(r"position\.pairing", None, "RoPE would rotate other pairs of dimensions"),
    _Known(r"position\.layout", None, "features would get the sinusoids of other features"),
    _Known(r".*\.gate\..*", "approximate", "the gate is lost", after=None),
    _Known(r".*\.gate\.per", None, "the trained gate has another number of factors"),
    _Known(r"mlp\.gated", None, "the matrix `up` has another purpose in gated experts"),
    _Known(r"(attention|cross)\.(n_heads|n_kv_heads|head_dim|v_dim|nope_dim|rope_dim|kv_rank|q_rank)", None, _HEADS),
    _Known(r"mixer\.(n_heads|n_key_heads|n_value_heads|head_dim|key_dim|value_dim|n_groups|d_state)", None, _HEADS),
)
"""Changes whose effect is known. The first entry that fits counts. Any other change is approximate."""


class Difference(NamedTuple):
    """Field with another value than in the trained model."""

    field: str
    before: object
    after: object


def differences(own: LayerConfig, wanted: LayerConfig) -> list[Difference]:
    """Return the fields in which two layers compute something else from the same weights."""
    return _differences(own.model_dump(mode="json"), wanted.model_dump(mode="json"))


def without_weights(weights: Weights, target: Architecture, random: Sequence[str], n_tokens: int) -> Iterator[Step]:
    """Yield a step for each remaining difference: a field that changes what the weights compute, or tensors that begin
    from random values.

    `random` holds the names of the new model's tensors whose initial values are random. A change is exact if the logits
    of all texts of up to `n_tokens` tokens stay the same. Raise UserError, with the field, for a change after which the
    weights would mean nothing.
    """
    layers: dict[tuple[Difference, Effect, str], list[str]] = {}
    for name, own, new in weights.pairs(target):
        for difference in differences(own, new):
            effect, detail = _effect(difference, limit(difference.field, own, new), n_tokens)
            if difference.field == "attention.visibility" and isinstance(new.position, T5):
                effect, detail = "approximate", "T5 has other buckets if tokens see later ones"
            layers.setdefault((difference, effect, detail), []).append(name)
    for difference in _outer_differences(weights.model, target.model):
        layers.setdefault((difference, *_effect(difference, 0, n_tokens)), [])
    for ((field, before, after), effect, detail), names in layers.items():
        where = f"{numbered(names)}: " if names else ""
        why = f" ({detail})" if detail else ""
        yield Step(_full_name(field), effect, f"{where}{_text(before)} to {_text(after)}{why}")
    yield from _new_tensors(weights, random)


def _new_tensors(weights: Weights, random: Sequence[str]) -> Iterator[Step]:
    new = [name for name in random if name not in weights.tensors]
    inert = [name for name in new if name.startswith(weights.inert)]
    others = [name for name in new if not name.startswith(weights.inert)]
    if inert:
        yield Step("new tensors", "exact", f"{_initial(inert)}, which do not change the logits")
    if others:
        yield Step("new tensors", "new", _initial(others))


def _initial(names: Sequence[str]) -> str:
    return f"{len(names)} tensors begin from initial values: {', '.join(names[:4])}"


def _effect(difference: Difference, n_exact: float, n_tokens: int) -> tuple[Effect, str]:
    """Return the effect of a change that does nothing in texts of up to `n_exact` tokens, and its detail."""
    field, before, after = difference
    if n_exact > 0:
        texts = "" if n_exact == float("inf") else f"in texts of up to {n_exact:.0f} tokens"
        return ("exact", texts) if n_exact >= n_tokens else ("approximate", f"exact {texts}")
    known = next((known for known in _KNOWN if _fits(known, field, before, after)), None)
    if known is None:
        return "approximate", ""
    if known.effect is None:
        found = f"{_text(after)}, but {_text(before)} in the trained weights"
        raise UserError(f"{_full_name(field)}: {found}; {known.detail}; allowed: {_text(before)}")
    return known.effect, known.detail


def _full_name(field: str) -> str:
    return f"model.encoder.{field}" if field.startswith("cross.") else f"model.{field}"


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


def _outer_differences(own: ModelConfig, wanted: ModelConfig) -> Iterator[Difference]:
    """Yield the differences outside the layers, including those of the norms around the layers."""
    before, after = (resolve(x).model_dump(mode="json", exclude=set(_IN_LAYERS)) for x in (own, wanted))
    yield from _differences(before, after)
    norms_before, norms_after = (outer_norms(x) for x in (own, wanted))
    for stack in norms_before.keys() & norms_after.keys():
        section = "encoder.norm" if stack == ENCODER else "norm"
        before, after = (x[stack].model_dump(mode="json", exclude={"placement"}) for x in (norms_before, norms_after))
        yield from _differences({section: before}, {section: after})


def _differences(before: dict[str, object], after: dict[str, object]) -> list[Difference]:
    left, right = flatten(before), flatten(after)
    fields = [field for field in {**left, **right} if left.get(field) != right.get(field)]
    changed = [field.removesuffix("kind") for field in fields if field.endswith(".kind")]
    found = [Difference(field, _hashable(left.get(field)), _hashable(right.get(field))) for field in fields]
    return [d for d in found if not _NO_EFFECT.fullmatch(d.field) and not _belongs_to_a_kind(d, changed)]


def _belongs_to_a_kind(difference: Difference, changed: Sequence[str]) -> bool:
    """Return whether only one of two kinds has the field, so that the change of the kind already says it. `changed`
    holds the sections whose kind has changed."""
    field, before, after = difference
    is_in_one = before is None or after is None
    return is_in_one and not field.endswith("kind") and any(field.startswith(section) for section in changed)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else str(value) if isinstance(value, dict) else value


def _fits(known: _Known, field: str, before: object, after: object) -> bool:
    values = ((known.before, before), (known.after, after))
    return re.fullmatch(known.field, field) is not None and all(a is ... or a == b for a, b in values)


def _text(value: object) -> str:
    return to_yaml_line(list(value) if isinstance(value, tuple) else value)
