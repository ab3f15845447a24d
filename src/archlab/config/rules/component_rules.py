"""Rules between the fields of one component, collected in COMPONENT_RULES.

Each rule is checked for the model and for each of its layer kinds.
"""

from collections.abc import Callable
from typing import TypeVar

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Component
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.mamba import Mamba
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead, QKNorm
from archlab.config.components.norm import AnyNorm, Norm
from archlab.config.components.rglru import RGLRU
from archlab.config.model_schema import ModelConfig
from archlab.config.rules.rule import Rule, cast_has_a_weight, divisors, needs_a_norm, offset_has_a_weight

C = TypeVar("C", bound=Component)


def _rule_for(
    section: str, schema: type[C], broken: Callable[[C, ModelConfig], str | None]
) -> Callable[..., str | None]:
    def check(m: ModelConfig) -> str | None:
        component = getattr(m, section)
        return broken(component, m) if isinstance(component, schema) else None

    return check


def _heads_divide_d_model(a: MultiHead, m: ModelConfig) -> str | None:
    if a.head_dim or m.d_model % a.n_heads == 0:
        return None
    return f"{a.n_heads} does not divide d_model = {m.d_model}; set head_dim, or use one of {divisors(m.d_model)}"


def _kv_heads_divide_heads(a: MultiHead, _m: ModelConfig) -> str | None:
    if a.n_kv_heads is None or a.n_heads % a.n_kv_heads == 0:
        return None
    return f"{a.n_kv_heads} does not divide n_heads = {a.n_heads}; allowed: {divisors(a.n_heads)}"


def _beyond_a_window(field: str) -> Callable[[AnyAttention, ModelConfig], str | None]:
    def broken(a: AnyAttention, _m: ModelConfig) -> str | None:
        value = getattr(a, field)
        if a.window is not None or not value:
            return None
        return f"{value} applies to keys beyond a window, but attention.window is not set; set it"

    return broken


def _window_or_blocks(a: AnyAttention, _m: ModelConfig) -> str | None:
    if a.blocks is None or a.window is None:
        return None
    return f"sparse blocks replace a window, but window is {a.window}; set only one of them"


def _distances_count_back(a: AnyAttention, m: ModelConfig) -> str | None:
    if a.visibility == "causal" or m.position.counts_later_keys:
        return None
    problem = (
        f"{a.visibility} lets queries see later keys, but position.kind {m.position.kind} covers only earlier keys"
    )
    return f"{problem}; allowed: causal, or another position.kind"


def _there_is_more_to_see(a: AnyAttention, _m: ModelConfig) -> str | None:
    is_alone = a.window == 1 and a.stride is None and not a.global_tokens
    if a.visibility == "causal" or not (is_alone or (a.blocks is not None and a.blocks.size == 1)):
        return None
    return f"{a.visibility} changes nothing, because each token sees only itself; leave it out"


def _summary_fits_block(a: AnyAttention, _m: ModelConfig) -> str | None:
    blocks = a.blocks
    if blocks is None or blocks.summary < blocks.size:
        return None
    return f"{blocks.summary} keys are the whole block of {blocks.size} tokens; allowed: 0 to {blocks.size - 1}"


def _each_head_has_weights(a: MultiHead, _m: ModelConfig) -> str | None:
    norm = a.qk_norm
    if norm.kind == "none" or norm.scope != "each_head" or norm.n_parameters(1):
        return None
    return "each_head gives each head its own weights, but this norm has no weights; allowed: head, width"


def _keys_are_as_wide_as_values(a: MultiHead, m: ModelConfig) -> str | None:
    heads = a.resolve(m.d_model)
    if not a.keys_as_values or heads.v_dim == heads.head_dim:
        return None
    return f"true, but a value has {heads.v_dim} dimensions and a key {heads.head_dim}; allowed: false, or equal widths"


def _groups_divide_heads(x: Mamba2, m: ModelConfig) -> str | None:
    heads = x.resolve(m.d_model).n_heads
    if heads % x.n_groups == 0:
        return None
    return f"{x.n_groups} does not divide n_heads = {heads}; allowed: {divisors(heads)}"


def _steps_have_room(x: Mamba2, _m: ModelConfig) -> str | None:
    if x.dt_max is None or x.dt_min < x.dt_max:
        return None
    return f"dt_min {x.dt_min} must be below dt_max {x.dt_max}"


def _key_heads_divide_value_heads(x: GatedDelta, m: ModelConfig) -> str | None:
    heads = x.resolve(m.d_model)
    if heads.n_value_heads % heads.n_key_heads == 0:
        return None
    allowed = f"allowed: multiples of n_key_heads = {heads.n_key_heads}"
    return f"{heads.n_value_heads} value heads cannot be divided evenly among {heads.n_key_heads} key heads; {allowed}"


def _heads_divide_channels(x: RGLRU, m: ModelConfig) -> str | None:
    width = x.resolve(m.d_model).lru_width
    if width % x.n_heads == 0:
        return None
    return f"{x.n_heads} does not divide lru_width = {width}; allowed: {divisors(width)}"


def _enough_experts(x: MoE, _m: ModelConfig) -> str | None:
    return None if x.active <= x.experts else f"{x.active} exceeds experts = {x.experts}; allowed: up to {x.experts}"


def _groups_are_equal(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or x.experts % groups.n == 0:
        return None
    return f"{groups.n} does not divide {x.experts} experts; allowed: {divisors(x.experts)}"


def _groups_are_left_out(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.kept < groups.n:
        return None
    return f"{groups.kept} of {groups.n} groups excludes no group; allowed: less than {groups.n}, or groups = null"


def _groups_have_two(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.by == "max" or x.experts // groups.n >= 2:
        return None
    problem = f"top2 needs two experts per group, but each group has {x.experts // groups.n}"
    return f"{problem}; allowed: max, or fewer groups"


def _groups_hold_the_active(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or x.active <= (most := groups.kept * (x.experts // groups.n)):
        return None
    problem = f"kept = {groups.kept} of {groups.n} groups allows {most} experts per token, but active is {x.active}"
    return f"{problem}; raise groups.kept"


def _groups_leave_out_a_best(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.by == "top2" or groups.kept < x.active:
        return None
    # The best k experts are in at most k groups: those with the best experts.
    problem = f"'max' has no effect: with {groups.kept} groups kept, the {x.active} best experts are always included"
    return f"{problem}; allowed: top2, or kept below active"


def _only_gated(field: str) -> Callable[[MoE, ModelConfig], str | None]:
    def broken(x: MoE, _m: ModelConfig) -> str | None:
        is_ignored = getattr(x, field) and not x.gated
        return f"{getattr(x, field)} applies to gated experts, but gated is false; leave it out" if is_ignored else None

    return broken


def _own_norms_replace_one(x: MoE, m: ModelConfig) -> str | None:
    if not x.own_norms:
        return None
    if x.shared is None or not x.router.norm:
        missing = "shared" if x.shared is None else "router.norm"
        return f"true gives all that reads the stream a norm of its own, but mlp.{missing} is not set; set it"
    if not isinstance(m.norm, Norm) or m.norm.placement not in ("pre", "double"):
        return "true replaces the norm before the mixture, but the layer has none; allowed: false, or placement double"
    is_alone = m.block.parallel == "none"
    return None if is_alone else f"true, but block.parallel is {m.block.parallel}; allowed: false, or parallel none"


def _pooled_has_a_loss(x: MoE, _m: ModelConfig) -> str | None:
    return "has no effect, because balance.loss is 0; leave it out" if x.balance.pooled and not x.balance.loss else None


def qk_norm(m: ModelConfig) -> QKNorm | None:
    return m.attention.qk_norm if isinstance(m.attention, MultiHead) else None


def _inner_norm(m: ModelConfig) -> AnyNorm | None:
    return m.mixer.inner_norm if isinstance(m.mixer, Mamba) else None


HEAD_WIDTH = ("attention.n_heads", "attention.head_dim", "d_model")
"""Fields that determine the width of an attention head."""

COMPONENT_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("attention.n_heads", HEAD_WIDTH, _rule_for("attention", MultiHead, _heads_divide_d_model)),
    Rule(
        "attention.n_kv_heads",
        ("attention.n_kv_heads", "attention.n_heads"),
        _rule_for("attention", MultiHead, _kv_heads_divide_heads),
    ),
    Rule(
        "attention.stride",
        ("attention.window", "attention.stride"),
        _rule_for("attention", AnyAttention, _beyond_a_window("stride")),
    ),
    Rule(
        "attention.global_tokens",
        ("attention.window", "attention.global_tokens"),
        _rule_for("attention", AnyAttention, _beyond_a_window("global_tokens")),
    ),
    Rule(
        "attention.blocks",
        ("attention.window", "attention.blocks"),
        _rule_for("attention", AnyAttention, _window_or_blocks),
    ),
    Rule(
        "attention.visibility",
        ("attention.visibility", "position"),
        _rule_for("attention", AnyAttention, _distances_count_back),
    ),
    Rule("attention.visibility", ("attention",), _rule_for("attention", AnyAttention, _there_is_more_to_see)),
    Rule("attention.blocks.summary", ("attention.blocks",), _rule_for("attention", AnyAttention, _summary_fits_block)),
    Rule(
        "attention.keys_as_values",
        ("attention.keys_as_values", "attention.v_dim", *HEAD_WIDTH),
        _rule_for("attention", MultiHead, _keys_are_as_wide_as_values),
    ),
    Rule("attention.sub_norm", ("attention.sub_norm", "norm"), needs_a_norm("attention.sub_norm")),
    Rule("attention.qk_norm.unit_offset", ("attention.qk_norm",), offset_has_a_weight(qk_norm)),
    Rule("attention.qk_norm.scope", ("attention.qk_norm",), _rule_for("attention", MultiHead, _each_head_has_weights)),
    Rule("attention.qk_norm.cast", ("attention.qk_norm",), cast_has_a_weight(qk_norm)),
    Rule("mixer.inner_norm.unit_offset", ("mixer",), offset_has_a_weight(_inner_norm)),
    Rule("mixer.inner_norm.cast", ("mixer",), cast_has_a_weight(_inner_norm)),
    Rule("mixer.n_groups", ("mixer", "d_model"), _rule_for("mixer", Mamba2, _groups_divide_heads)),
    Rule("mixer.dt_min", ("mixer",), _rule_for("mixer", Mamba2, _steps_have_room)),
    Rule("mixer.n_value_heads", ("mixer", "d_model"), _rule_for("mixer", GatedDelta, _key_heads_divide_value_heads)),
    Rule("mixer.n_heads", ("mixer", "d_model"), _rule_for("mixer", RGLRU, _heads_divide_channels)),
    Rule("mlp.sub_norm", ("mlp.sub_norm", "norm"), needs_a_norm("mlp.sub_norm")),
    Rule("mlp.active", ("mlp.active", "mlp.experts"), _rule_for("mlp", MoE, _enough_experts)),
    Rule("mlp.router.groups.n", ("mlp.experts", "mlp.router"), _rule_for("mlp", MoE, _groups_are_equal)),
    Rule("mlp.router.groups.kept", ("mlp.router",), _rule_for("mlp", MoE, _groups_are_left_out)),
    Rule("mlp.router.groups.by", ("mlp.experts", "mlp.router"), _rule_for("mlp", MoE, _groups_have_two)),
    Rule("mlp.router.groups.by", ("mlp.active", "mlp.router"), _rule_for("mlp", MoE, _groups_leave_out_a_best)),
    Rule(
        "mlp.router.groups", ("mlp.experts", "mlp.active", "mlp.router"), _rule_for("mlp", MoE, _groups_hold_the_active)
    ),
    Rule("mlp.clamp", ("mlp.clamp", "mlp.gated"), _rule_for("mlp", MoE, _only_gated("clamp"))),
    Rule("mlp.up_offset", ("mlp.up_offset", "mlp.gated"), _rule_for("mlp", MoE, _only_gated("up_offset"))),
    Rule("mlp.router.norm", ("mlp.router", "norm"), needs_a_norm("mlp.router.norm")),
    Rule("mlp.own_norms", ("mlp", "norm", "block"), _rule_for("mlp", MoE, _own_norms_replace_one)),
    Rule("mlp.balance.pooled", ("mlp.balance",), _rule_for("mlp", MoE, _pooled_has_a_loss)),
)
