"""New biases, which are 0, and new weights of norms, which are 1."""

import re
from collections.abc import Mapping

import torch

from archlab.config.components.norm import WeightedNorm
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.model.layer import Layer
from archlab.model.roles import roles_of
from archlab.pricing.units import plural
from archlab.transplant.differences import differences
from archlab.transplant.norm_sites import norm_groups, outer_norms, with_outer_norms
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import Architecture, LazyTensor, Weights, constant, with_value

_FIELDS = re.compile(r".*bias|.*norm\.weight")
_OF_HEAD = {
    "head.bias": ("head.bias", "embedding.weight"),
    "head.transform.bias": ("head.transform.dense.bias", "head.transform.dense.weight"),
}
"""Bias and matrix of each field of the head."""


Constant = tuple[tuple[int, ...], float]
"""Shape of a parameter, and the number from which all its elements begin."""


def _constants(weights: Weights, target: Architecture) -> Weights:
    tensors, layers = _in_layers(weights, target)
    of_head, model = _in_head(weights, target)
    of_norms, model = _in_outer_norms(weights, target, model)
    tensors |= of_head | of_norms
    if not tensors:
        return weights
    change = CONSTANTS.change(f"{plural(len(tensors), 'new tensor')}, such as {next(iter(tensors))}")
    return weights.changed(change, tensors=tensors, layers=layers, model=model)


def _in_layers(weights: Weights, target: Architecture) -> tuple[dict[str, LazyTensor], dict[str, LayerConfig]]:
    tensors, layers = dict[str, LazyTensor](), dict[str, LayerConfig]()
    parameters = dict[LayerConfig, Mapping[str, Constant]]()
    for name, own, wanted in weights.pairs(target):
        changed = own
        for field, before, after in differences(own, wanted):
            if before is False and after is True and _FIELDS.fullmatch(field):
                changed = with_value(changed, field, True)
        if changed is not own:
            layers[name] = changed
            for layer in (own, changed):
                if layer not in parameters:
                    parameters[layer] = _parameters(layer)
            new = {part: x for part, x in parameters[changed].items() if part not in parameters[own]}
            tensors |= {f"{name}.{part}": constant(CONSTANTS.name, *initial) for part, initial in new.items()}
    return tensors, layers


def _parameters(layer: LayerConfig) -> Mapping[str, Constant]:
    """Return the shape and the initial value of each parameter of a layer that begins from one number."""
    with torch.device("meta"):
        roles = list(roles_of(Layer(layer, "auto")))
    return {r.name: (tuple(r.parameter.shape), r.constant) for r in roles if isinstance(r.constant, int | float)}


def _in_head(weights: Weights, target: Architecture) -> tuple[dict[str, LazyTensor], ModelConfig]:
    tensors, model = dict[str, LazyTensor](), weights.model
    own, wanted = model.head, target.model.head
    pairs = {"head.bias": (own, wanted), "head.transform.bias": (own.transform, wanted.transform)}
    for field, (before, after) in pairs.items():
        if before and after and after.bias and not before.bias:
            bias, matrix = _OF_HEAD[field]
            tensors[bias] = constant(CONSTANTS.name, weights.tensors[matrix].shape[:1], 0.0)
            model = with_value(model, field, True)
    return tensors, model


def _in_outer_norms(
    weights: Weights, target: Architecture, model: ModelConfig
) -> tuple[dict[str, LazyTensor], ModelConfig]:
    tensors, norms = dict[str, LazyTensor](), outer_norms(model)
    for group in norm_groups(weights, target):
        if group.name not in norms or not all(isinstance(x, WeightedNorm) for x in (group.own, group.wanted)):
            continue
        for part, value in (("weight", 1.0), ("bias", 0.0)):
            if getattr(group.own, part, None) is False and getattr(group.wanted, part, None) is True:
                norms[group.name] = norms[group.name].model_copy(update={part: True})
                tensors |= {
                    f"{site.name}.{part}": constant(CONSTANTS.name, (site.width,), value) for site in group.sites
                }
    return tensors, model if norms == outer_norms(model) else with_outer_norms(model, norms)


CONSTANTS = Transformation(
    name="new biases and norm weights",
    effect="exact",
    fields=("model.*bias", "model.*norm.weight"),
    rule="New biases are 0, and new weights of norms are 1. The logits stay the same.",
    paper="Chen 2016, arXiv 1511.05641",
    apply=_constants,
)
