"""Scaling of a config to another size or width, with its own proportions."""

import re
from fractions import Fraction

from archlab.config.components.component import Absent
from archlab.config.components.dense import Dense
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.core.merge import Raw, expand
from archlab.config.identity import flatten
from archlab.config.io import build_config, overlay
from archlab.config.layers import COMPONENTS, distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.sizing.family import CAN_BE_SCALED, Family, FamilyMember, can_be_scaled
from archlab.sizing.propose import refusal
from archlab.sizing.scale import ScalableModel
from archlab.sizing.search import Search, TargetSize


def resized(raw: Raw, name: str, size: int) -> Raw:
    """Return changes (dotted field to value) after which a config has `size` parameters, within 1%.

    The proportions stay the same. Raise UserError if the config has layers that cannot be scaled, or if no shape with
    these proportions has that size.
    """
    member, target = FamilyMember(name, build_config(raw, (), name)), TargetSize(size)
    if not can_be_scaled(member):
        raise UserError(f"{name} cannot be scaled; {CAN_BE_SCALED}")
    family, template = Family([member], "total"), ScalableModel(member, raw)
    if best := Search(family, template, target).best():
        return template.change(best[0])
    raise UserError(refusal(family, template, target))


_GROWS = re.compile(r"(layers\.[^.]+\.)?(attention\.n_(kv_)?heads|mlp\.((shared\.)?d_ff|latent\.width))")
"""Model fields that grow in proportion to d_model: widths of MLPs and latent spaces, and the number of heads."""

_FOLLOW = (MultiHead, Dense, MoE, Absent)
"""Components whose widths depend only on d_model and on the fields in _GROWS."""


def at_width(config: Config, name: str, width: int) -> Config:
    """Return the config with d_model = `width`. The number of heads and the widths of MLPs grow in proportion.

    Nothing else changes. Raise UserError if the number of heads would not be an integer, if a component has widths that
    do not depend on d_model, or if the model has an encoder. The message begins with `name`.
    """
    model, factor = config.model, Fraction(width, config.model.d_model)
    _check_all_follow(model, name)
    raw = config.model_dump(mode="json")
    raw["model"]["layers"] = expand(raw["model"]["layers"] or {})
    growing = {field: value for field, value in flatten(raw["model"]).items() if value and _GROWS.fullmatch(field)}
    grown = {field: value * factor for field, value in growing.items()}
    for field, value in grown.items():
        if value.denominator > 1:
            problem = f"{growing[field]} at d_model {model.d_model} would be {float(value):g} at {width}"
            raise UserError(f"{name}: model.{field}: {problem}; allowed: widths at which it is a whole number")
    change = {f"model.{field}": int(value) for field, value in grown.items()}
    return build_config(overlay(config.model_dump(mode="json"), {"model.d_model": width, **change}, Config), (), name)


def _check_all_follow(model: ModelConfig, name: str) -> None:
    if model.encoder is not None:
        raise UserError(f"{name}: the model has an encoder; allowed here: models without an encoder")
    for layer in distinct_layers(model):
        for section in COMPONENTS:
            if not isinstance(component := getattr(layer, section), _FOLLOW):
                problem = f"model.{section}.kind: {component.kind} has widths that do not depend on d_model"
                raise UserError(f"{name}: {problem}; allowed here: multi-head attention, and MLPs")
    if model.embedding.width:
        raise UserError(f"{name}: model.embedding.width is {model.embedding.width}; allowed here: null")
