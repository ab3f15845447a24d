"""A config at another size or another width, in its own proportions."""

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
    """Dotted field -> value: what makes a config one of `size` parameters, within 1%, in its own proportions.

    UserError where it has layers that cannot be scaled, or where no shape in its proportions has that size.
    """
    member, wanted = FamilyMember(name, build_config(raw, (), name)), TargetSize(size)
    if not can_be_scaled(member):
        raise UserError(f"{name} cannot be scaled; {CAN_BE_SCALED}")
    family, template = Family([member], "total"), ScalableModel(member, raw)
    if found := Search(family, template, wanted).best():
        return template.change(found[0])
    raise UserError(refusal(family, template, wanted))


_GROWS = re.compile(r"(layers\.[^.]+\.)?(attention\.n_(kv_)?heads|mlp\.(shared\.)?d_ff)")
"""Fields of a model that grow as d_model does: heads in number, and so all of attention."""

_FOLLOW = (MultiHead, Dense, MoE, Absent)
"""Components all of whose widths are said by these fields, or by d_model."""


def at_width(config: Config, name: str, width: int) -> Config:
    """The config with that d_model, as many more heads, and MLPs as much wider; nothing else differs.

    UserError, which begins with the config's name, where there are no whole heads of that width, or where the widths of
    a component do not follow the stream's.
    """
    model, factor = config.model, Fraction(width, config.model.d_model)
    _check_all_follow(model, name)
    raw = config.model_dump(mode="json")
    raw["model"]["layers"] = expand(raw["model"]["layers"] or {})
    growing = {field: value for field, value in flatten(raw["model"]).items() if value and _GROWS.fullmatch(field)}
    grown = {field: value * factor for field, value in growing.items()}
    for field, value in grown.items():
        if value.denominator > 1:
            found = f"{growing[field]} at d_model {model.d_model}, so {float(value):g} at {width}"
            raise UserError(f"{name}: model.{field}: {found}; allowed: widths with a whole number")
    change = {f"model.{field}": int(value) for field, value in grown.items()}
    return build_config(overlay(config.model_dump(mode="json"), {"model.d_model": width, **change}, Config), (), name)


def _check_all_follow(model: ModelConfig, name: str) -> None:
    for layer in distinct_layers(model):
        for section, component in zip(COMPONENTS, layer.components, strict=True):
            if not isinstance(component, _FOLLOW):
                found = f"model.{section}.kind: {component.kind} has widths of its own"
                raise UserError(f"{name}: {found}; allowed here: multi-head attention, and MLPs")
    if model.embedding.width:
        raise UserError(f"{name}: model.embedding.width: {model.embedding.width}; allowed here: null")
