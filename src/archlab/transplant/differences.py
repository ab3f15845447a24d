"""Differences that remain after all transformations: fields that change what the weights compute, and new tensors."""

import math
import re
from collections.abc import Iterator, Sequence

from archlab.config.core.base import kind_of
from archlab.config.identity import flatten
from archlab.config.layers import PER_LAYER, PLACES, LayerConfig, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import Refusals
from archlab.pricing.units import plural
from archlab.transplant.norm_sites import outer_norms
from archlab.transplant.reconfigurations import (
    OTHER_FIELD,
    Difference,
    Reconfiguration,
    reconfiguration_of,
    text_of,
)
from archlab.transplant.transformation import Entry, Transformation
from archlab.transplant.weights import ENCODER, Architecture, Change, Effect, Weights, numbered

_IN_LAYERS = (*PER_LAYER, "layers", "encoder", "n_layers", "max_seq_len", "init", "mup")
"""Sections of a model that its layers contain, or that do not change what its weights compute."""
_NO_EFFECT = re.compile(r"kind|norm\.alpha|dropout\..*|.*\.balance\..*")
"""Fields of a layer that do not change what the weights compute. `kind` is the name of a layer kind, and `norm.alpha`
an initial value."""


def differences(own: LayerConfig, wanted: LayerConfig) -> list[Difference]:
    """Return the fields in which two layers compute something else from the same weights."""
    return _differences(own.model_dump(mode="json"), wanted.model_dump(mode="json"))


def without_weights(weights: Weights, target: Architecture, random: Sequence[str], n_tokens: int) -> Iterator[Change]:
    """Yield a change for each remaining difference: a field that changes what the weights compute, or tensors that
    begin from random values.

    `random` holds the names of the new model's tensors whose initial values are random. A change is exact if the logits
    of all texts of up to `n_tokens` tokens stay the same. Raise UserError, with the field, for a change after which the
    weights would mean nothing.
    """
    layers: dict[tuple[Difference, Reconfiguration, float], list[str]] = {}
    refusals = Refusals()
    for name, own, new in weights.pairs(target):
        for difference in differences(own, new):
            with refusals.collecting():
                kind = reconfiguration_of(difference, new)
                layers.setdefault((difference, kind, kind.exact_up_to(own, new)), []).append(name)
    for difference in _outer_differences(weights.model, target.model):
        with refusals.collecting():
            layers.setdefault((difference, reconfiguration_of(difference, None), 0), [])
    refusals.raise_any()
    for (difference, kind, n_exact), names in layers.items():
        where = f"{difference.name}{' in ' if names else ''}{numbered(names)}"
        effect, why = _promise(kind, n_exact, n_tokens)
        values = f"{text_of(difference.before)} to {text_of(difference.after)}"
        yield kind.change(f"{where}: {values}{f' ({why})' if why else ''}", effect)
    yield from _new_tensors(weights, random)


def _promise(kind: Reconfiguration, n_exact: float, n_tokens: int) -> tuple[Effect, str]:
    """Return the effect of a change that does nothing in texts of up to `n_exact` tokens, and the reason."""
    if n_exact == 0:
        return kind.effect, "" if kind is OTHER_FIELD else kind.rule
    if math.isinf(n_exact):
        return "exact", ""
    texts = f"in texts of up to {n_exact:.0f} tokens"
    return ("exact", texts) if n_exact >= n_tokens else ("approximate", f"exact {texts}")


def _new_tensors(weights: Weights, random: Sequence[str]) -> Iterator[Change]:
    new = [name for name in random if name not in weights.tensors]
    inert = [name for name in new if name.startswith(weights.inert)]
    others = [name for name in new if not name.startswith(weights.inert)]
    if inert:
        yield NEW_TENSORS.change(f"{_random(inert)}, which do not change the logits", "exact")
    if others:
        yield NEW_TENSORS.change(_random(others))


def _random(names: Sequence[str]) -> str:
    shown = ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])
    return f"{plural(len(names), 'tensor')} with random initial values: {shown}"


def _with_other_kind(weights: Weights, target: Architecture) -> Weights:
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
        pairs = ", ".join(f"{before} to {after}" for before, after in sorted(kinds, key=str))
        dropped = [n for n in weights.tensors if any(n.startswith(f"{name}.{place}.") for name in replaced)]
        change = OTHER_KIND.change(f"{place} of {numbered(list(replaced))}: {pairs}")
        weights = weights.changed(change, dropped=dropped, layers=replaced)
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
    return is_in_one and any(field.startswith(section) and field != f"{section}kind" for section in changed)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else str(value) if isinstance(value, dict) else value


OTHER_KIND = Transformation(
    name="component of another kind",
    effect="new",
    fields=("model.attention.kind", "model.mixer.kind", "model.mlp.kind", "model.encoder.cross.kind"),
    rule="If no other transformation maps the weights, the component begins from the initial values of a new model.",
    apply=_with_other_kind,
)
NEW_TENSORS = Entry(
    name="new tensors",
    effect="new",
    fields=("model.*",),
    rule="Tensors without a counterpart in the weights begin from the initial values of a new model.",
)
