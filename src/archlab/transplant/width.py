"""A wider model whose features are copies of the trained ones (Net2Net, Chen 2016)."""

import math
from collections.abc import Mapping

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import (
    BlockNorm,
    DynamicTanh,
    LayerNorm,
    NoNorm,
    PartialRMSNorm,
    RMSNorm,
    ScaleNorm,
)
from archlab.config.components.position import T5, Learned, Shaw, TransformerXL
from archlab.config.components.rglru import RGLRU
from archlab.config.core.base import kind_of
from archlab.config.core.text import exact
from archlab.config.layers import PLACES, LayerConfig, stacks
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.transplant.axes import FIXED, GROWING, OF_NORM, OUTSIDE, Features, axes_of, features_of
from archlab.transplant.duplication import with_copies
from archlab.transplant.norm_sites import outer_norms, with_outer_norms
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import DECODER, ENCODER, Architecture, LazyTensor, Weights, numbered

_NORMS = (NoNorm, LayerNorm, RMSNorm, ScaleNorm, PartialRMSNorm, DynamicTanh)
_SHARED = "shared.d_ff"


def _wider(weights: Weights, target: Architecture) -> Weights:
    before, after = weights.model.d_model, target.model.d_model
    times = _times(before, after, "model.d_model")
    tensors, layers, changes = dict[str, LazyTensor](), dict[str, LayerConfig](), dict[str, list[str]]()
    for name, own, wanted in weights.pairs(target):
        stream = Features(own.d_model, wanted.d_model // own.d_model)
        of_places = {place: _factors(getattr(own, place), getattr(wanted, place), place) for place in PLACES}
        is_wider = stream.times > 1 or any(factor > 1 for factors in of_places.values() for factor in factors.values())
        norm = _with_share_of(own.norm, wanted.norm) if is_wider else own.norm
        layer = own.model_copy(update={"d_model": wanted.d_model, "norm": norm})
        for place, factors in of_places.items():
            component = getattr(own, place)
            if stream.times == 1 and all(factor == 1 for factor in factors.values()):
                continue
            tensors |= _of_component(weights, name, own, norm, place, factors, stream)
            multiplied = _multiplied(component, factors)
            layer = layer.model_copy(update={place: multiplied})
            for field, factor in factors.items():
                if factor > 1:
                    changes.setdefault(f"{place}.{field} times {factor}", []).append(name)
        if layer != own:
            layers[name] = layer
    if times == 1 and not layers:
        return weights
    of_outside, model = _outside(weights, target, times)
    width = [f"d_model {before} to {after}"] if times > 1 else []
    details = [*width, *(f"{text} in {numbered(names)}" for text, names in changes.items())]
    return weights.changed(WIDER.change("; ".join(details)), tensors=tensors | of_outside, layers=layers, model=model)


def _times(before: int, after: int, field: str) -> int:
    if after % before:
        raise UserError(
            f"{field}: {after}, and the trained weights have {before}; allowed: {before} or a multiple of it, such as "
            f"{2 * before}"
        )
    return after // before


def _factors(own: Component, new: Component, place: str) -> dict[str, int]:
    """Return the factor of each growing field of a component. They are 1 if the model has another kind of
    component."""
    fields, section = GROWING.get(type(own), ()), "encoder.cross" if place == "cross" else place
    if type(own) is not type(new):
        return dict.fromkeys((*fields, _SHARED), 1)
    for field in FIXED.get(type(own), ()):
        before, after = getattr(own, field), getattr(new, field)
        if before != after:
            raise UserError(
                f"model.{section}.{field}: {after or 'null'}, and the trained weights have {before or 'null'}; no "
                f"transformation changes it; allowed: {before or 'null'}"
            )

    def times(field: str) -> int:
        return _times(getattr(own, field), getattr(new, field), f"model.{section}.{field}")

    match own, new:
        case MultiHead(), MultiHead():
            queries, keys = times("n_heads"), new.n_kv_heads // own.n_kv_heads
            # Another number of key/value heads alone is the change of another transformation.
            is_multiple = queries > 1 and new.n_kv_heads % own.n_kv_heads == 0
            return {"n_heads": queries, "n_kv_heads": keys if is_multiple else 1}
        case MoE(shared=before), MoE(shared=after):
            shared = _times(before.d_ff, after.d_ff, f"model.mlp.{_SHARED}") if before and after else 1
            return {"d_ff": times("d_ff"), _SHARED: shared}
        case RGLRU(), RGLRU():
            channels, groups = times("lru_width"), times("n_heads")
            if groups not in (1, channels):
                raise UserError(
                    f"model.mixer.n_heads: {new.n_heads}, with lru_width times {channels}; allowed: {own.n_heads}, or "
                    f"{own.n_heads * channels}"
                )
            return {"lru_width": channels, "n_heads": groups}
        case _:
            return {field: times(field) for field in fields}


def _multiplied(component: Component, factors: Mapping[str, int]) -> Component:
    fields = {field: getattr(component, field) * factor for field, factor in factors.items() if field != _SHARED}
    if isinstance(component, MoE) and component.shared:
        fields["shared"] = component.shared.model_copy(update={"d_ff": component.shared.d_ff * factors[_SHARED]})
    return component.model_copy(update=fields)


def _of_component(
    weights: Weights,
    layer: str,
    own: LayerConfig,
    norm: BlockNorm,
    place: str,
    factors: Mapping[str, int],
    stream: Features,
) -> dict[str, LazyTensor]:
    component, tensors = getattr(own, place), weights.under(f"{layer}.{place}")
    axes = axes_of(own, place)
    if axes is None:
        raise UserError(
            f"model.{place}.kind: {component.kind}; no transformation widens its tensors; allowed: the shape of the "
            "trained weights"
        )
    features = features_of(component, factors, stream)
    _check_positions(own, place, features)
    _check_norm(own.norm, norm, stream)
    if getattr(component, "sub_norm", False):
        _check_norm(own.norm, norm, features["mixed" if isinstance(component, MultiHead) else "hidden"])
    if isinstance(component, Mamba2) and factors["n_groups"] > 1 and not isinstance(component.norm, NoNorm):
        raise UserError(
            f"model.mixer.n_groups: {component.n_groups * factors['n_groups']}; the norm of the mixer has one mean "
            f"square for each group; allowed: {component.n_groups}, or mixer.norm.kind=none"
        )
    made = dict[str, LazyTensor]()
    for part, tensor in tensors.items():
        name = f"{layer}.{place}.{part}"
        # A router with a norm divides its input by the square root of d_model.
        is_divided = part == "router.weight" and isinstance(component, MoE) and component.router.norm
        factor = math.sqrt(stream.times) if is_divided else 1.0
        is_activation = part.split(".")[-2:-1] == ["activation"]
        made[name] = _copied(tensor, "." if is_activation else axes[part], features, name, factor)
    for part, tensor in weights.under(f"{layer}.{place}_norms").items():
        name = f"{layer}.{place}_norms.{part}"
        made[name] = _copied(tensor, OF_NORM[part], {"stream": stream}, name)
    return made


def _copied(
    tensor: LazyTensor, axes: str, features: Mapping[str, Features], name: str, factor: float = 1.0
) -> LazyTensor:
    return with_copies(tensor, axes, features, WIDER.name, name, factor)


def _check_positions(own: LayerConfig, place: str, features: Mapping[str, Features]) -> None:
    component, position = getattr(own, place), own.site_of(place).position
    if not isinstance(component, AnyAttention):
        return
    depends_on_heads = position.acts_on == "scores" and not isinstance(position, T5 | Shaw | TransformerXL)
    if depends_on_heads and features["head"].times > 1:
        raise UserError(
            f"model.attention.n_heads: {component.n_heads * features['head'].times}; the terms of "
            f"position.kind={kind_of(type(position))} depend on the number of heads; allowed: {component.n_heads}"
        )
    if isinstance(position, TransformerXL) and features["stream"].times > 1:
        raise _other_waves(own.d_model, own.d_model * features["stream"].times, "transformer_xl")


def _other_waves(before: int, after: int, kind: str) -> UserError:
    return UserError(
        f"model.d_model: {after}; the vectors of position.kind={kind} are not copies of those of another width; "
        f"allowed: {before}"
    )


def _with_share_of(own: BlockNorm, wanted: BlockNorm) -> BlockNorm:
    """Return the norm, with the target's share of features if both are partial RMS norms."""
    if isinstance(own, PartialRMSNorm) and isinstance(wanted, PartialRMSNorm):
        return own.model_copy(update={"share": wanted.share})
    return own


def _check_norm(norm: BlockNorm, wider: BlockNorm, features: Features) -> None:
    if features.times == 1 and norm == wider:
        return
    if type(norm) not in _NORMS:
        raise UserError(
            f"model.norm.kind: {kind_of(type(norm))}; it is unknown what it makes of copied features; allowed: "
            f"{', '.join(kind_of(known) for known in _NORMS)}"
        )
    if isinstance(norm, PartialRMSNorm) and isinstance(wider, PartialRMSNorm):
        n_before, n_after = norm.n_first(features.size), wider.n_first(features.size * features.times)
        if n_after != n_before * features.times:
            allowed = math.floor(n_before / features.size * 10**6) / 10**6  # rounded down, because n_first rounds up
            raise UserError(
                f"model.norm.share: {wider.share} of {features.size * features.times} features is {n_after} features, "
                f"but the copies of the {n_before} trained ones are {n_before * features.times}; allowed: {allowed}"
            )


def _outside(weights: Weights, target: Architecture, times: int) -> tuple[dict[str, LazyTensor], ModelConfig]:
    old, norms = weights.model, outer_norms(target.model)
    wider = {stack: _with_share_of(norm, norms[stack]) for stack, norm in outer_norms(old).items()} if times > 1 else {}
    new = with_outer_norms(old, wider) if wider else old
    new = new.model_copy(update={"d_model": old.d_model * times})
    stream = Features(old.d_model, times)
    token = Features(old.embedding.width) if old.embedding.width else stream
    added = token if old.embedding.widened == "sum" else stream
    features = {"stream": stream, "token": token, "added": added}
    for name, norm in wider.items():
        _check_norm(outer_norms(old)[name], norm, stream)
    for stack in stacks(old):
        if added.times > 1 and stack.position.acts_on == "embedding" and not isinstance(stack.position, Learned):
            raise _other_waves(old.d_model, new.d_model, kind_of(type(stack.position)))
    embedding = _embedding_scale(old) / _embedding_scale(new)
    if old.head.tied:
        new = _with_tied_scale(old, new, target.model, embedding * token.times)
    head = old.readout.scale / new.readout.scale
    scales = {"embedding.weight": embedding, "head.weight": head, "head.bias": head}
    in_layers = tuple(f"{stack}." for stack in weights.architecture.stacks)
    tensors = dict[str, LazyTensor]()
    for name, tensor in weights.tensors.items():
        if not name.startswith(in_layers):
            plain = name.removeprefix("encoder.")
            if plain == "position_bias.weight":
                features["head"] = _shared_heads(weights, target, DECODER if plain == name else ENCODER)
            tensors[name] = _copied(tensor, OUTSIDE.get(plain, "."), features, name, scales.get(name, 1.0))
    return tensors, new


def _embedding_scale(model: ModelConfig) -> float:
    return float(model.embedding.resolve(model.base_width).scale)


def _shared_heads(weights: Weights, target: Architecture, stack: str) -> Features:
    """Return the heads of a table of position biases that all layers share."""
    for own, new in zip(weights.architecture.stacks[stack], target.stacks[stack], strict=True):
        before, after = own.attention, new.attention
        if isinstance(before, AnyAttention) and isinstance(after, AnyAttention) and type(before) is type(after):
            return Features(before.n_heads, after.n_heads // before.n_heads)
    return Features(1)


def _with_tied_scale(old: ModelConfig, new: ModelConfig, target: ModelConfig, times: float) -> ModelConfig:
    """Return the wider model with a factor on logits that makes up for the copies, which a tied head adds up."""
    needed = old.readout.scale / times
    if math.isclose(new.readout.scale, needed):
        return new
    if not math.isclose(scale := target.readout.scale, needed):
        raise UserError(
            f"model.head.scale: {exact(scale)}; a tied head adds up the copies of each feature and would multiply the "
            f"logits by {scale / needed:g}; allowed: {exact(needed)}, or an untied head (model.head.tied=false)"
        )
    return new.model_copy(update={"head": new.head.model_copy(update={"scale": target.head.scale})})


WIDER = Transformation(
    name="copied features",
    effect="exact",
    fields=(
        "model.d_model",
        "model.attention.n_heads",
        "model.attention.n_kv_heads",
        "model.mixer.n_heads",
        "model.mixer.inner_width",
        "model.mlp.d_ff",
        "model.mlp.shared.d_ff",
    ),
    rule="Each feature, hidden unit or head is copied a whole number of times, and each weight that multiplies it is "
    "split among the copies. The parts add up to the weight, so the logits stay the same up to rounding. The parts are "
    "unequal, because equal copies would have equal gradients and stay equal.",
    paper="Net2Net (Chen 2016, arXiv 1511.05641); unequal parts as in LEMON (Wang 2024, arXiv 2310.07999)",
    apply=_wider,
)
