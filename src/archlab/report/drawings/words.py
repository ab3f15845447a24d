"""Text of the boxes in a block diagram, read from the config's fields.

A field at its default value adds no text. A kind or field that this module's tables do not list is shown under its name
in the config.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticUndefined

from archlab.config.components.activation import name_of_mlp
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component
from archlab.config.components.dense import Dense, GatedMLP, PlainMLP
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.kimi_delta import KimiDelta
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba import Mamba
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import AnyNorm
from archlab.config.components.position import T5, NoPosition, Position, Rope, Shaw, TransformerXL
from archlab.config.components.rglru import RGLRU
from archlab.config.components.short_conv import ShortConv
from archlab.config.components.visibility import Visibility
from archlab.config.core.base import Base
from archlab.config.core.registry import is_users
from archlab.config.layers import Branch
from archlab.pricing.units import plural
from archlab.report.drawings.svg import Words

Phrases = Mapping[str, str | Callable[[Any], str]]
"""Map a field to the phrase for its value: a format string, or a function of the value."""
_NOT_DRAWN = ("kind", "eps", "norm_eps", "placement", "cast", "order")
"""Fields that the diagram does not show, because they are too detailed."""

_LONGEST_TITLE = 44
"""Maximum number of characters in a title. A longer title would be wider than the narrowest diagram."""


def title_with(config: str, overrides: Sequence[str]) -> str:
    """Return the title of a config whose fields are changed by `overrides`. If these are too long, the title has their
    number."""
    if not overrides:
        return config
    title = f"{config} with {' '.join(overrides)}"
    return title if len(title) <= _LONGEST_TITLE else f"{config} with {plural(len(overrides), 'field')} changed"


def norm_words(norm: AnyNorm) -> Words:
    """Return the kind of the norm, followed by its settings that differ from their defaults."""
    phrases = {"unit_offset": "× (1 + w)", "bias": "no bias", "weight": "no weight"}
    return Words(norm.display_name, tuple(_changes(norm, phrases)))


def role_of(branch: Branch) -> str:
    """Return the role of a branch's boxes. Cross-attention looks like other attention."""
    return "attention" if branch.site.reads_source else branch.name


def component_words(branch: Branch) -> Words:
    """Return the text of a component's box: its kind and sizes, followed by settings that differ from their
    defaults."""
    component = branch.component
    words = _words_of(component)
    if is_users(type(component)):
        words = words._replace(title=component.display_name)
    if branch.site.reads_source:
        words = words._replace(title="Cross-attention")
    positions = [position_words(branch.site.position)] if component.score_heads and not branch.site.reads_source else []
    return Words(words.title, (*words.lines, *positions, *_beyond_sizes(branch))).fitted()


def score_words(branch: Branch, drawn_elsewhere: Sequence[str]) -> Iterator[str]:
    """Yield phrases about everything that changes the attention scores: the position encoding (unless it is RoPE),
    visible keys, and settings that differ from their defaults.

    `drawn_elsewhere` lists fields to leave out. Cross-attention has no position encoding.
    """
    if not isinstance(branch.site.position, Rope) and not branch.site.reads_source:
        yield position_words(branch.site.position)
    yield from _beyond_sizes(branch, drawn_elsewhere)


def remaining_words(component: Component, drawn_elsewhere: Sequence[str]) -> Iterator[str]:
    """Yield phrases for a component's settings that differ from their defaults. The fields in `drawn_elsewhere` are
    left out."""
    return _changes(component, _PHRASES, (*_described_fields(component), *drawn_elsewhere))


def _described_fields(component: Component) -> tuple[str, ...]:
    described = next((_DESCRIBED[base] for base in type(component).__mro__ if base in _DESCRIBED), None)
    return tuple(type(component).model_fields) if described is None else described


def _beyond_sizes(branch: Branch, drawn_elsewhere: Sequence[str] = ()) -> Iterator[str]:
    component, dropout = branch.component, branch.site.dropout
    if branch.site.reads_source:
        yield "sees the whole source"
    elif isinstance(component, Visibility):
        yield from _visibility(component)
    yield from remaining_words(component, drawn_elsewhere)
    if isinstance(component, AnyAttention) and not math.isclose(component.scale, component.query_width**-0.5):
        yield f"scores × {component.scale:.4g}"
    if component.score_heads and dropout.attention:
        yield f"dropout {dropout.attention:g} on weights"


def position_words(position: Position) -> str:
    """Return a phrase for the position encoding of a layer."""
    changed = ", ".join(_changes(position, _POSITION_PHRASES, ("theta", "buckets", "scaling", "max_distance")))
    match position:
        case Rope():
            scaling = "" if position.scaling.kind == "none" else f", {position.scaling.kind} scaling"
            words = f"RoPE, theta {_number(position.theta)}{scaling}"
        case T5():
            table = "one table for all layers" if position.shared else "a table per layer"
            return f"T5 bias: {position.buckets} buckets, {table}"
        case Shaw():
            words = f"Shaw's relative keys up to {position.max_distance}"
        case TransformerXL():
            words = "Transformer-XL's relative positions"
        case NoPosition():
            return "no positions (NoPE)"
        case _ if position.acts_on == "embedding":
            return "positions: added to the embedding"
        case _:
            words = position.display_name
    return f"{words}, {changed}" if changed else words


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,g}"


def _words_of(component: Component) -> Words:
    match component:
        case MultiHead():
            return _multi_head(component)
        case Latent():
            queries = () if component.q_rank is None else (f"queries through {component.q_rank:,}",)
            return Words(
                "Latent attention",
                (
                    f"{component.n_heads} heads × ({component.nope_dim} + {component.rope_dim} shared)",
                    f"keys and values through {component.kv_rank:,}",
                    *queries,
                ),
            )
        case GatedMLP():
            return _mlp(component, is_gated=True)
        case Dense():
            return _mlp(component, is_gated=False)
        case MoE():
            return _mixture(component)
        case ShortConv():
            return Words("Short convolution", (f"{component.taps} taps",))
        case _:
            title = component.display_name
            descriptions = (words.removeprefix(component.kind).strip() for words in component.describe().values())
            lines = (re.sub(r"(?<=\d)x(?=\d)", " × ", words) for words in descriptions)
            lines = (re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", words) for words in lines)
            return Words(title[0].upper() + title[1:], tuple(lines))


def _mlp(mlp: Dense, *, is_gated: bool) -> Words:
    title = f"{name_of_mlp(mlp.activation, is_gated=is_gated)} MLP"
    return Words(title[0].upper() + title[1:], (f"d_ff {mlp.d_ff:,}",))


def _multi_head(heads: MultiHead) -> Words:
    width = f"{heads.head_dim}" if heads.v_dim == heads.head_dim else f"{heads.head_dim}, values {heads.v_dim}"
    if heads.n_kv_heads == heads.n_heads:
        return Words("Multi-head attention", (f"{heads.n_heads} heads × {width}",))
    title = "Multi-query attention" if heads.n_kv_heads == 1 else "Grouped-query attention"
    plural = "" if heads.n_kv_heads == 1 else "s"
    return Words(title, (f"{heads.n_heads} query, {heads.n_kv_heads} KV head{plural} × {width}",))


def _mixture(mixture: MoE) -> Words:
    name = name_of_mlp(mixture.activation, is_gated=mixture.gated)
    lines = [f"{mixture.active} of {mixture.experts} {name} experts, d_ff {mixture.d_ff:,}"]
    if mixture.latent:
        biases = ", with biases" if mixture.latent.bias else ""
        lines.append(f"in a latent space, width {mixture.latent.width:,}{biases}")
    if mixture.shared:
        gate = ", gated" if mixture.shared.gate else ""
        lines.append(f"and a shared one, d_ff {mixture.shared.d_ff:,}{gate}")
    return Words("Mixture of experts", tuple(lines))


def _visibility(rule: Visibility) -> Iterator[str]:
    if rule.visibility != "causal":
        yield "sees both sides" if rule.visibility == "two_sided" else "sees the whole prefix"
    if rule.blocks is not None:
        summary = f" and the last {rule.blocks.summary} of each earlier block" if rule.blocks.summary else ""
        yield f"sees its block of {rule.blocks.size:,}{summary}"
    elif rule.window is not None:
        beyond = "" if rule.stride is None else f" and distances divisible by {rule.stride}"
        yield f"window {rule.window:,}{beyond}"
    elif rule.visibility == "causal":
        yield "causal, all earlier keys"
    if rule.global_tokens:
        yield f"global tokens: {rule.global_tokens}"


_VISIBILITY = tuple(Visibility.model_fields)
_DESCRIBED: Mapping[type[Base], tuple[str, ...]] = {
    MultiHead: (*_VISIBILITY, "n_heads", "n_kv_heads", "head_dim", "v_dim", "scale"),
    Latent: (*_VISIBILITY, "n_heads", "nope_dim", "rope_dim", "kv_rank", "q_rank", "v_dim", "scale"),
    MoE: ("experts", "active", "d_ff", "gated", "activation", "latent", "shared", "balance"),
    PlainMLP: ("activation", "d_ff"),
    GatedMLP: ("activation", "d_ff"),
    Mamba: ("inner_width", "d_state", "dt_rank"),
    Mamba2: ("n_heads", "head_dim", "d_state"),
    GatedDelta: ("n_key_heads", "n_value_heads", "key_dim", "value_dim"),
    KimiDelta: ("n_key_heads", "n_value_heads", "key_dim", "value_dim"),
    RGLRU: ("lru_width", "n_heads"),
    ShortConv: ("taps",),
}
"""Map a kind of component to the fields that `_words_of` and `_visibility` describe. For kinds that are not listed,
they describe all fields."""


def _qk_norm(norm: Any) -> str:
    scope = {"head": "", "each_head": ", weights per head", "width": ", over all heads"}[norm.scope]
    return f"QK-norm: {norm.display_name}{scope}"


_PHRASES: Phrases = {
    "qkv_bias": "biases on q, k, v",
    "out_bias": "bias on the output",
    "qk_norm": _qk_norm,
    "v_norm": "norm of values",
    "keys_as_values": "keys as values",
    "clip_qkv": "q, k, v clipped to ±{:g}",
    "temperature": "queries grow with position",
    "sinks": "learned sinks",
    "sub_norm": "norm before the output projection",
    "gate": lambda gate: f"output gate: {gate.activation} per {gate.per}",
    "softcap": "scores capped at {:g}",
    "bias": "biases",
    "clamp": "clamped to {:g}",
    "up_offset": "linear half + {:g}",
    "own_norms": "norms around the experts",
    "router": lambda router: ", ".join(_changes(router, _ROUTER_PHRASES)),
    "norm": lambda norm: f"norm: {norm.display_name}",
    "inner_norm": lambda norm: ", ".join(("norms of dt, B and C", *norm_words(norm).lines)),
    "n_groups": "{} groups of B and C",
    "low_rank": "decays and gate of full rank",
    "decay_bound": "decays of at least exp(−{:g})",
    "dt_min": "steps of at least {:g}",
}
_ROUTER_PHRASES: Phrases = {
    "score": "{} router",
    "bias": "router bias",
    "normalise": "weights not normalized",
    "norm": "norm before the router",
    "expert_scale": "scale per expert",
    "applied_to": "weights on the {}",
    "factor": "weights × {:g}",
    "sparsemixer": "SparseMixer, tolerance {:g}",
    "correction": "correction bias",
    "groups": lambda groups: f"{groups.kept} of {groups.n} groups",
}
_POSITION_PHRASES: Phrases = {
    "fraction": "on {:.0%} of a head",
    "pairing": "{} pairs",
    "max_bias": "steepest 2^-{:g}",
}


def _changes(value: Base, phrases: Phrases, drawn_elsewhere: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a phrase for each field that differs from its default. Derived fields must be listed in `drawn_elsewhere`,
    so that they get no phrase."""
    for name, field in type(value).model_fields.items():
        current, default = getattr(value, name), field.get_default(call_default_factory=True)
        if name in (*_NOT_DRAWN, *drawn_elsewhere) or default is PydanticUndefined or current == default:
            continue
        phrase = phrases.get(name, name.replace("_", " ") if current is True else name.replace("_", " ") + " {}")
        yield phrase.format(current) if isinstance(phrase, str) else phrase(current)
