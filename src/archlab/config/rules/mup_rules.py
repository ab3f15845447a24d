"""Rules of muP. With muP, a config must not set values that muP derives, and must use only components that muP knows
how to scale."""

import math
from collections.abc import Callable

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Absent
from archlab.config.components.dense import Dense
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.mup import MuP
from archlab.config.components.norm import ScaleNorm
from archlab.config.components.position import Alibi, Shaw, TransformerXL
from archlab.config.core.base import kind_of
from archlab.config.core.registry import Registered, is_users
from archlab.config.core.text import exact
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import Muon
from archlab.config.rules.rule import Rule
from archlab.config.schema import Config


def _with_mup(field: str, broken: Callable[[ModelConfig, MuP], str | None]) -> Rule[ModelConfig]:
    section, _, _ = field.partition(".")
    return Rule(field, ("mup", "d_model", section), lambda m: None if m.mup is None else broken(m, m.mup))


def _no_rule(value: str, allowed: str) -> str:
    return f"{value}; muP (model.mup) has no rule for it; allowed: {allowed}"


def _refuse_users_kind(config: Registered) -> str | None:
    """Return a message if the kind is user-defined, because muP does not know how to scale it with the width."""
    return _no_rule(f"{config.kind}, your own kind", "archlab's kinds") if is_users(type(config)) else None


def _attention(m: ModelConfig, _: MuP) -> str | None:
    has_rule = isinstance(m.attention, (MultiHead, Absent))
    return _refuse_users_kind(m.attention) if has_rule else _no_rule(m.attention.kind, "multihead, none")


def _gate(m: ModelConfig, _: MuP) -> str | None:
    per_head = isinstance(m.attention, MultiHead) and m.attention.gate is not None and m.attention.gate.per == "head"
    return (
        _no_rule("a gate per head, whose number of factors may stay the same in a wider model", "per = element")
        if per_head
        else None
    )


def _score_scale(m: ModelConfig, mup: MuP) -> str | None:
    if not isinstance(m.attention, AnyAttention) or m.attention.scale is None:
        return None
    derived = mup.score_scale(m.attention.resolve(m.d_model).query_width)
    if math.isclose(m.attention.scale, derived, rel_tol=1e-6):
        return None
    return (
        f"{exact(m.attention.scale)}, but muP derives {exact(derived)}; leave it out, or change model.mup.base_head_dim"
    )


def _mixer(m: ModelConfig, _: MuP) -> str | None:
    return None if isinstance(m.mixer, Absent) else _no_rule(m.mixer.kind, "none")


def _mlp(m: ModelConfig, _: MuP) -> str | None:
    has_rule = isinstance(m.mlp, (Dense, Absent))
    return _refuse_users_kind(m.mlp) if has_rule else _no_rule(m.mlp.kind, "plain, gated, none")


def _norm(m: ModelConfig, _: MuP) -> str | None:
    if isinstance(m.norm, ScaleNorm):
        return _no_rule("scalenorm, which has one parameter for the whole width", "any other norm")
    return _refuse_users_kind(m.norm)


def _position(m: ModelConfig, _: MuP) -> str | None:
    if isinstance(m.position, Shaw | TransformerXL) or (isinstance(m.position, Alibi) and m.position.form == "falcon"):
        return _no_rule(
            f"{m.position.kind}, which is scaled together with the scores", "other kinds, or form = distance"
        )
    return _refuse_users_kind(m.position)


MUP_LAYER_RULES: tuple[Rule[ModelConfig], ...] = (
    _with_mup("attention.kind", _attention),
    _with_mup("attention.gate", _gate),
    _with_mup("attention.scale", _score_scale),
    _with_mup("mixer.kind", _mixer),
    _with_mup("mlp.kind", _mlp),
    _with_mup("norm.kind", _norm),
    _with_mup("position.kind", _position),
)


def _embedding_width(m: ModelConfig, _: MuP) -> str | None:
    return _no_rule(f"{m.embedding.width}, an embedding narrower than d_model", "null") if m.embedding.width else None


def _head_bias(m: ModelConfig, _: MuP) -> str | None:
    return _no_rule("true adds a bias that is scaled together with the logits", "false") if m.head.bias else None


def _head_scale(m: ModelConfig, mup: MuP) -> str | None:
    derived = 1 / mup.wider(m.d_model)
    if m.head.scale is None or math.isclose(m.head.scale, derived, rel_tol=1e-6):
        return None
    return f"{exact(m.head.scale)}, but muP sets it to base_width / d_model = {exact(derived)}; remove this field"


MUP_MODEL_RULES: tuple[Rule[ModelConfig], ...] = (
    _with_mup("embedding.width", _embedding_width),
    _with_mup("head.bias", _head_bias),
    _with_mup("head.scale", _head_scale),
)


def _optimizer(c: Config) -> str | None:
    if c.model.mup is None:
        return None
    match c.train.optimizer:
        case Muon(scale="adamw"):
            value = "muon with scale adamw, whose updates grow with the square root of the width"
            return _no_rule(value, "adamw, and muon with scale jordan or spectral")
        case optimizer if is_users(type(optimizer)):
            return _no_rule(f"the optimizer {kind_of(type(optimizer))}", "adamw, muon")
        case _:
            return None


MUP_CONFIG_RULES: tuple[Rule[Config], ...] = (Rule("train.optimizer", ("model", "train.optimizer"), _optimizer),)
