"""Norms without weights or biases, which the next matrices take over, and norms that store their weights as offsets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from archlab.config.components.norm import AnyRMSNorm, BlockNorm, WeightedNorm
from archlab.errors import Refusals
from archlab.model.arithmetic import at_least_float32
from archlab.pricing.units import plural
from archlab.transplant.norm_sites import NormGroup, norm_groups, with_outer_norms
from archlab.transplant.transformation import Transformation
from archlab.transplant.weight_errors import largest
from archlab.transplant.weights import Architecture, Errors, LazyTensor, Weights, made, numbered, with_value


def _offset(weights: Weights, target: Architecture) -> Weights:
    groups = [g for g in norm_groups(weights, target) if _shift(g.own, g.wanted)]
    shifts = {site.name: _shift(g.own, g.wanted) for g in groups for site in g.sites}
    layers = {}
    for name, own, wanted in weights.pairs(target):
        for place in ("attention", "cross"):
            before, after = (getattr(getattr(x, place), "qk_norm", None) for x in (own, wanted))
            if shift := _shift(before, after):
                shifts |= {f"{name}.{place}.{part}_norm.norm": shift for part in "qk"}
                layers[name] = with_value(layers.get(name, own), f"{place}.qk_norm.unit_offset", shift < 0)
    if not shifts:
        return weights
    tensors = {f"{name}.weight": _plus(weights.tensors[f"{name}.weight"], shift) for name, shift in shifts.items()}
    weights = weights.changed(NORM_OFFSET.change(plural(len(shifts), "norm")), tensors=tensors, layers=layers)
    return _with_norms(weights, groups, [with_value(g.own, "unit_offset", _shift(g.own, g.wanted) < 0) for g in groups])


def _shift(own: object, wanted: object) -> int:
    """Return the number to be added to the weights of norms: 1 or -1 if just one of the configs has `unit_offset`,
    otherwise 0."""
    if not (isinstance(own, WeightedNorm) and isinstance(wanted, WeightedNorm) and own.weight and wanted.weight):
        return 0
    return own.unit_offset - wanted.unit_offset


def _plus(tensor: LazyTensor, number: int) -> LazyTensor:
    return tensor.then(NORM_OFFSET.name, lambda weight: at_least_float32(weight) + number, tensor.shape)


def _folded_biases(weights: Weights, target: Architecture) -> Weights:
    groups = [g for g in norm_groups(weights, target) if _loses(g, "bias")]
    tensors, dropped, incomplete = dict[str, LazyTensor](), [], []
    for group in groups:
        for site in group.sites:
            bias = weights.tensors[f"{site.name}.bias"]
            dropped.append(f"{site.name}.bias")
            readers = [reader for reader in site.readers if reader.weight in weights.tensors]
            for reader in readers:
                if reader.bias is None or reader.bias not in weights.tensors:
                    continue
                own = weights.tensors[reader.bias]
                tensors[reader.bias] = made(
                    FOLDED_BIASES.name, _with_product, own.shape, own, weights.tensors[reader.weight], bias
                )
            if site.obstacle or any(reader.bias not in weights.tensors for reader in readers):
                incomplete.append(site.name)
    if not groups:
        return weights
    such_as = f", such as {incomplete[0]}" if len(incomplete) > 1 else f" ({''.join(incomplete)})"
    lost = f"; the values of {plural(len(incomplete), 'norm')} are lost{such_as}" if incomplete else ""
    effect = "approximate" if incomplete else "exact"
    change = FOLDED_BIASES.change(
        f"{_names(groups)}{lost}", effect, partial(_errors_of_outputs, weights, groups, incomplete)
    )
    weights = weights.changed(change, tensors=tensors, dropped=dropped)
    return _with_norms(weights, groups, [g.own.model_copy(update={"bias": False}) for g in groups])


def _errors_of_outputs(weights: Weights, groups: Sequence[NormGroup], without_bias: Sequence[str]) -> Errors:
    """Return the largest relative error of a norm's output without its bias, as a root mean square over inputs whose
    features are uncorrelated with variance 1."""
    return largest(
        {"output of a norm": _error_of_output(weights.under(site.name), int(getattr(group.own, "unit_offset", False)))}
        for group in groups
        for site in group.sites
        if site.name in without_bias
    )


def _error_of_output(norm: Mapping[str, LazyTensor], offset: int) -> float:
    bias = norm["bias"].read().double()
    weight = norm["weight"].read().double() + offset if "weight" in norm else bias.new_ones(len(bias))
    total = weight.square().sum() + bias.square().sum()
    return (bias.square().sum() / total.clamp(min=1e-30)).sqrt().item()


def _with_product(bias: Tensor, matrix: Tensor, norm_bias: Tensor) -> Tensor:
    return at_least_float32(bias) + at_least_float32(matrix) @ at_least_float32(norm_bias)


def _folded_weights(weights: Weights, target: Architecture) -> Weights:
    groups = [g for g in norm_groups(weights, target) if _loses(g, "weight")]
    tensors, dropped, refusals = dict[str, LazyTensor](), [], Refusals()
    for group in groups:
        offset = int(getattr(group.own, "unit_offset", False))
        for site in group.sites:
            if getattr(group.own, "bias", False):
                refusals.add(
                    "model.norm.weight: false, but the bias of a norm is added after its weight, so the next matrices "
                    "cannot take over the weight alone; allowed: true, or also model.norm.bias=false"
                )
            if site.obstacle:
                refusals.add(f"model.norm.weight: false, but {site.obstacle}; allowed: true")
            weight = weights.tensors[f"{site.name}.weight"]
            dropped.append(f"{site.name}.weight")
            for reader in site.readers:
                if reader.is_shared:
                    refusals.add(
                        "model.norm.weight: false, but the tied head cannot take over the weight of the final norm; "
                        "allowed: true, or model.head.tied=false"
                    )
                if reader.weight in weights.tensors:
                    matrix = weights.tensors[reader.weight]
                    multiply = partial(_times, offset=offset)
                    tensors[reader.weight] = made(FOLDED_WEIGHTS.name, multiply, matrix.shape, matrix, weight)
    refusals.raise_any()
    if not groups:
        return weights
    weights = weights.changed(FOLDED_WEIGHTS.change(_names(groups)), tensors=tensors, dropped=dropped)
    return _with_norms(weights, groups, [_without_weight(g.own) for g in groups])


def _times(matrix: Tensor, norm_weight: Tensor, *, offset: int) -> Tensor:
    return at_least_float32(matrix) * (at_least_float32(norm_weight) + offset)


def _without_weight(norm: BlockNorm) -> BlockNorm:
    cast = {"cast": "after_weight"} if isinstance(norm, AnyRMSNorm) else {}
    return norm.model_copy(update={"weight": False, "unit_offset": False, **cast})


def _loses(group: NormGroup, field: str) -> bool:
    """Return whether the norms have a weight or bias that the target's lack, although they are layer or RMS norms."""
    wanted = group.wanted
    return isinstance(wanted, WeightedNorm) and getattr(group.own, field, False) and not getattr(wanted, field, False)


def _with_norms(weights: Weights, groups: Sequence[NormGroup], norms: Sequence[BlockNorm]) -> Weights:
    """Return the weights with other configs of norms, without a change in the plan."""
    new = {group.name: norm for group, norm in zip(groups, norms, strict=True)}
    stacks = {
        stack: tuple(
            layer.model_copy(update={"norm": new.get(f"{stack}.{i}", layer.norm)}) for i, layer in enumerate(layers)
        )
        for stack, layers in weights.architecture.stacks.items()
    }
    outer = {stack: new[stack] for stack in stacks if stack in new}
    return replace(weights, architecture=Architecture(with_outer_norms(weights.model, outer), stacks))


def _names(groups: Sequence[NormGroup]) -> str:
    layers = [group.name for group in groups if group.name.rpartition(".")[2].isdigit()]
    return " and ".join(_parts(layers, has_outer=len(layers) < len(groups)))


def _parts(layers: Sequence[str], *, has_outer: bool) -> Iterator[str]:
    if layers:
        yield numbered(layers)
    if has_outer:
        yield "the norms outside the layers"


NORM_OFFSET = Transformation(
    name="norm weights as offsets",
    effect="exact",
    fields=("model.norm.unit_offset", "model.attention.qk_norm.unit_offset"),
    rule="1 is subtracted from the weights of norms that then multiply by 1 + weight, or added in the other direction.",
    paper="Gemma Team 2024, arXiv 2403.08295",
    apply=_offset,
)
FOLDED_BIASES = Transformation(
    name="folded norm biases",
    effect="exact",
    fields=("model.norm.bias", "model.norm.kind"),
    rule="The next matrix W takes over the bias b of a norm: W b is added to the bias of W. Without a bias there, b is "
    "lost, the logits change, and the report states the relative error of the norm's output.",
    paper="Ashkboos 2024, arXiv 2401.15024",
    apply=_folded_biases,
)
FOLDED_WEIGHTS = Transformation(
    name="folded norm weights",
    effect="exact",
    fields=("model.norm.weight",),
    rule="The next matrices take over the weight of a norm: their columns are multiplied by it. A tied head must be "
    "untied. Norms whose output is part of the residual stream keep their weights.",
    paper="Ashkboos 2024, arXiv 2401.15024",
    apply=_folded_weights,
)
