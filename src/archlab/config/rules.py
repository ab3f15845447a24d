"""Rules between the fields of a layer, as a table; each is asked of the model and of each of its layer kinds.

A rule names the field it blames and the fields it reads, and says what was found and what is allowed (or
nothing). It is asked only when all those fields are valid by themselves, so one mistake is reported once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any, Generic, TypeVar

from archlab.config.any_attention import AnyAttention
from archlab.config.component import Absent, Component
from archlab.config.gated_delta import GatedDelta
from archlab.config.layers import COMPONENTS
from archlab.config.mamba2 import Mamba2
from archlab.config.model_schema import ModelConfig
from archlab.config.moe import MoE
from archlab.config.multi_head import MultiHead, QKNorm
from archlab.config.norm import AnyRMSNorm, WeightedNorm
from archlab.config.position import BIASED, DynamicNTK, Llama3Scaling, Longrope, Proportional, Rope, Yarn
from archlab.config.rglru import RGLRU

T = TypeVar("T")
C = TypeVar("C", bound=Component)


@dataclass(frozen=True)
class Rule(Generic[T]):
    """`broken` says what was found and what is allowed, or None when the rule holds."""

    field: str
    reads: tuple[str, ...]
    broken: Callable[[T], str | None]


def _of(section: str, schema: type[C], broken: Callable[[C, ModelConfig], str | None]) -> Callable[..., str | None]:
    """A rule about a component of that class; it holds where the section is of another."""

    def ask(m: ModelConfig) -> str | None:
        component = getattr(m, section)
        return broken(component, m) if isinstance(component, schema) else None

    return ask


def _divisors(n: int) -> str:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return ", ".join(map(str, sorted({*small, *(n // d for d in small)})))


def _heads_divide_d_model(a: MultiHead, m: ModelConfig) -> str | None:
    if a.head_dim or m.d_model % a.n_heads == 0:
        return None
    return f"{a.n_heads} does not divide d_model = {m.d_model}; give head_dim, or one of {_divisors(m.d_model)}"


def _kv_heads_divide_heads(a: MultiHead, _m: ModelConfig) -> str | None:
    if a.n_kv_heads is None or a.n_heads % a.n_kv_heads == 0:
        return None
    return f"{a.n_kv_heads} does not divide n_heads = {a.n_heads}; allowed: {_divisors(a.n_heads)}"


def _rotary(m: ModelConfig) -> tuple[str, int] | None:
    """Which dimensions of a query RoPE may rotate, in words, and how many; None without RoPE or without attention."""
    if not isinstance(m.position, Rope) or not isinstance(m.attention, AnyAttention):
        return None
    attention = m.attention.resolve(m.d_model)
    return f"{attention.rotary_field} = {attention.rotary_width}", attention.rotary_width


def _rope_turns_pairs(m: ModelConfig) -> str | None:
    rotary = _rotary(m)
    if rotary is None or not isinstance(m.position, Rope):
        return None
    field, width = rotary
    turning = int(width * m.position.fraction)
    if turning >= 2 and turning % 2 == 0:
        return None
    found = f"{m.position.fraction} of {field} is {turning} dimensions"
    return f"{found}; RoPE turns pairs: allowed are even numbers from 2"


def _a_layer_has_a_branch(m: ModelConfig) -> str | None:
    if not all(isinstance(getattr(m, name), Absent) for name in COMPONENTS):
        return None
    return "none, and neither a mixer nor an MLP: such a layer does nothing; give it one of them"


def _multiplier_has_a_branch(name: str) -> Callable[[ModelConfig], str | None]:
    def broken(m: ModelConfig) -> str | None:
        is_absent = isinstance(getattr(m, name), Absent) and getattr(m.block, f"{name}_multiplier") != 1
        return f"concerns {name}, but {name}.kind is none; leave it out" if is_absent else None

    return broken


def _parallel_has_a_norm_before(m: ModelConfig) -> str | None:
    if m.block.parallel == "none":
        return None
    if isinstance(m.mlp, Absent) or all(isinstance(x, Absent) for x in (m.attention, m.mixer)):
        return f"{m.block.parallel!r} sets an MLP beside attention or a mixer; this layer has not both; allowed: none"
    if m.norm.kind == "none":
        separate = m.block.parallel == "separate"
        return "'separate' needs a second norm, but norm.kind is none; allowed: none, shared" if separate else None
    if m.block.parallel == "separate" and not m.norm.n_parameters(1):
        return "'separate' norms without weight and bias are one and the same; allowed: none, shared"
    if m.norm.placement in ("pre", "double"):
        return None
    found = f"{m.block.parallel!r} is about the norm before the branches"
    has = "carries its output on" if m.norm.placement == "carried" else "has none"
    return f"{found}; placement {m.norm.placement} {has}; allowed: none"


def _beyond_a_window(field: str) -> Callable[[AnyAttention, ModelConfig], str | None]:
    def broken(a: AnyAttention, _m: ModelConfig) -> str | None:
        value = getattr(a, field)
        if a.window is not None or not value:
            return None
        return f"{value} concerns keys beyond a window, and there is none; give attention.window"

    return broken


def _window_or_blocks(a: AnyAttention, _m: ModelConfig) -> str | None:
    if a.blocks is None or a.window is None:
        return None
    return f"sparse blocks take the place of a window, and window is {a.window}; give one of them"


def _distances_count_back(a: AnyAttention, m: ModelConfig) -> str | None:
    if a.visibility == "causal" or m.position.kind not in BIASED:
        return None
    found = f"{a.visibility} shows keys after a query, but position.kind {m.position.kind} counts distances back only"
    return f"{found}; allowed: causal, or another position.kind"


def _there_is_more_to_see(a: AnyAttention, _m: ModelConfig) -> str | None:
    is_alone = a.window == 1 and a.stride is None and not a.global_tokens
    if a.visibility == "causal" or not (is_alone or (a.blocks is not None and a.blocks.size == 1)):
        return None
    return f"{a.visibility} changes nothing where each token sees itself alone; leave it out"


def _summary_fits_block(a: AnyAttention, _m: ModelConfig) -> str | None:
    blocks = a.blocks
    if blocks is None or blocks.summary < blocks.size:
        return None
    return f"{blocks.summary} of {blocks.size} tokens is all of a block; allowed: 0 to size - 1"


def needs_a_norm(field: str) -> Callable[[ModelConfig], str | None]:
    """A rule: where the field asks for a norm, the model has one."""
    section, name = field.split(".")

    def broken(m: ModelConfig) -> str | None:
        asked = getattr(getattr(m, section), name, False)
        return "would be a norm of model.norm.kind, but that is none" if asked and m.norm.kind == "none" else None

    return broken


def _offset_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, WeightedNorm) and norm.unit_offset and not norm.weight
        return "concerns the norm's weight, but this norm has none; allowed: false" if lacks else None

    return broken


def _cast_has_a_weight(norm_of: Callable[[ModelConfig], Any]) -> Callable[[ModelConfig], str | None]:
    def broken(m: ModelConfig) -> str | None:
        norm = norm_of(m)
        lacks = isinstance(norm, AnyRMSNorm) and norm.cast == "before_weight" and not norm.weight
        return "concerns the norm's weight, but this norm has none; allowed: after_weight" if lacks else None

    return broken


def _order_matters(m: ModelConfig) -> str | None:
    if isinstance(m.attention, Absent) or not isinstance(m.position, Rope) or m.position.order == "after_qk_norm":
        return None
    norm = _qk_norm(m)
    if norm is None or norm.kind == "none":
        return "before_qk_norm concerns attention.qk_norm, but there is none"
    # Rotating keeps the mean square; these two scalings also multiply, which a norm behind them undoes.
    keeps_length = m.position.scaling.kind not in ("yarn", "longrope")
    if norm.kind == "rmsnorm" and not norm.weight and keeps_length:
        return "before and after are the same to an RMS norm without weight; leave it out"
    return None


def _each_head_has_weights(a: MultiHead, _m: ModelConfig) -> str | None:
    norm = a.qk_norm
    if norm.kind == "none" or norm.scope != "each_head" or norm.n_parameters(1):
        return None
    return "each_head gives each head weights of its own, but this norm has no weights; allowed: head, width"


def _longrope_has_one_factor(m: ModelConfig) -> str | None:
    match m.position:
        case Rope(scaling=Longrope(attention_factor=float(), factor=factor)) if factor > 1:
            return "only decides attention_factor, and that is given; allowed beside it: 1"
        case _:
            return None


def _yarn_stretches(m: ModelConfig) -> str | None:
    match m.position:
        case Rope(scaling=Yarn(attention_factor=None | 1, factor=1)):
            return "1 changes nothing; allowed: more than 1, or another attention_factor beside it"
        case _:
            return None


def _longrope_has_a_factor_per_pair(m: ModelConfig) -> str | None:
    match m.position:
        case Rope(scaling=Longrope(short_factor=short, long_factor=long)) if rotary := _rotary(m):
            field, width = rotary
            pairs, given = int(width * m.position.fraction) // 2, {len(short), len(long)}
            found = f"lists of {sorted(given)} factors; {field} has {pairs} turning pairs"
            return None if given == {pairs} else found
        case _:
            return None


def _scaling_has_pairs_to_turn(m: ModelConfig) -> str | None:
    rotary = _rotary(m)
    if rotary is None or not isinstance(m.position, Rope):
        return None
    n = int(rotary[1] * m.position.fraction)
    match m.position.scaling:
        case DynamicNTK() if n == 2:
            return "dynamic stretches between the fastest and the slowest pair; of 2 turning dimensions there is one"
        case Proportional(turning=turning) as scaling if scaling.turning_pairs(n) < 1:
            return f"turning {turning} of {n // 2} pairs turns nothing; say position.kind = none instead"
        case _:
            return None


def _scaling_bands_in_order(m: ModelConfig) -> str | None:
    if m.position.kind != "rope":
        return None
    match m.position.scaling:
        case Llama3Scaling(low_freq_factor=low, high_freq_factor=high) if low >= high:
            return f"low_freq_factor {low} must be below high_freq_factor {high}"
        case Yarn(beta_slow=low, beta_fast=high) if low > high:
            return f"beta_slow {low} must not be above beta_fast {high}"
        case _:
            return None


def _t5_buckets_reach(m: ModelConfig) -> str | None:
    if m.position.kind != "t5" or m.position.max_distance > m.position.buckets // 2:
        return None
    return f"{m.position.max_distance} is within the single distances; allowed: more than {m.position.buckets // 2}"


def _groups_divide_heads(x: Mamba2, m: ModelConfig) -> str | None:
    heads = x.resolve(m.d_model).n_heads
    if heads % x.n_groups == 0:
        return None
    return f"{x.n_groups} does not divide n_heads = {heads}; allowed: {_divisors(heads)}"


def _steps_have_room(x: Mamba2, _m: ModelConfig) -> str | None:
    if x.dt_max is None or x.dt_min < x.dt_max:
        return None
    return f"dt_min {x.dt_min} must be below dt_max {x.dt_max}"


def _key_heads_divide_value_heads(x: GatedDelta, m: ModelConfig) -> str | None:
    heads = x.resolve(m.d_model)
    if heads.n_value_heads % heads.n_key_heads == 0:
        return None
    allowed = f"multiples of n_key_heads = {heads.n_key_heads}"
    return f"{heads.n_value_heads} value heads cannot share {heads.n_key_heads} key heads evenly; allowed: {allowed}"


def _heads_divide_channels(x: RGLRU, m: ModelConfig) -> str | None:
    width = x.resolve(m.d_model).lru_width
    if width % x.n_heads == 0:
        return None
    return f"{x.n_heads} does not divide lru_width = {width}; allowed: {_divisors(width)}"


def _enough_experts(x: MoE, _m: ModelConfig) -> str | None:
    return None if x.active <= x.experts else f"{x.active} of {x.experts} experts; allowed: up to {x.experts}"


def _groups_are_equal(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or x.experts % groups.n == 0:
        return None
    return f"{groups.n} does not divide {x.experts} experts; allowed: {_divisors(x.experts)}"


def _groups_are_left_out(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.kept < groups.n:
        return None
    return f"{groups.kept} of {groups.n} groups leaves none out; allowed: 1 to n - 1, or no groups"


def _groups_have_two(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.by == "max" or x.experts // groups.n >= 2:
        return None
    return f"top2 adds a group's two best experts, but a group has {x.experts // groups.n}; allowed: max"


def _groups_hold_the_active(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or x.active <= (most := groups.kept * (x.experts // groups.n)):
        return None
    return f"{groups.kept} of {groups.n} groups hold {most} experts, but active is {x.active}; keep more groups"


def _groups_leave_out_a_best(x: MoE, _m: ModelConfig) -> str | None:
    groups = x.router.groups
    if groups is None or groups.by == "top2" or groups.kept < x.active:
        return None
    # The best k experts are in the k groups with the best experts at most.
    found = f"max with {groups.kept} kept groups never leaves out one of the {x.active} best experts"
    return f"{found}; allowed: top2, or kept below active"


def _only_gated(field: str) -> Callable[[MoE, ModelConfig], str | None]:
    def broken(x: MoE, _m: ModelConfig) -> str | None:
        asked = getattr(x, field) and not x.gated
        return f"{getattr(x, field)} is for gated experts, and gated is false; leave it out" if asked else None

    return broken


def _pooled_has_a_loss(x: MoE, _m: ModelConfig) -> str | None:
    return "concerns balance.loss, but that is 0; leave it out" if x.balance.pooled and not x.balance.loss else None


_HEAD_WIDTH = ("attention.n_heads", "attention.head_dim", "d_model")
_ROTARY_WIDTH = (*_HEAD_WIDTH, "attention.rope_dim")


def _norm(m: ModelConfig) -> Any:
    return m.norm


def _qk_norm(m: ModelConfig) -> QKNorm | None:
    return m.attention.qk_norm if isinstance(m.attention, MultiHead) else None


LAYER_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("attention.n_heads", _HEAD_WIDTH, _of("attention", MultiHead, _heads_divide_d_model)),
    Rule(
        "attention.n_kv_heads",
        ("attention.n_kv_heads", "attention.n_heads"),
        _of("attention", MultiHead, _kv_heads_divide_heads),
    ),
    Rule("attention.kind", COMPONENTS, _a_layer_has_a_branch),
    Rule(
        "attention.stride",
        ("attention.window", "attention.stride"),
        _of("attention", AnyAttention, _beyond_a_window("stride")),
    ),
    Rule(
        "attention.global_tokens",
        ("attention.window", "attention.global_tokens"),
        _of("attention", AnyAttention, _beyond_a_window("global_tokens")),
    ),
    Rule(
        "attention.blocks", ("attention.window", "attention.blocks"), _of("attention", AnyAttention, _window_or_blocks)
    ),
    Rule(
        "attention.visibility",
        ("attention.visibility", "position"),
        _of("attention", AnyAttention, _distances_count_back),
    ),
    Rule("attention.visibility", ("attention",), _of("attention", AnyAttention, _there_is_more_to_see)),
    Rule("attention.blocks.summary", ("attention.blocks",), _of("attention", AnyAttention, _summary_fits_block)),
    Rule("attention.sub_norm", ("attention.sub_norm", "norm"), needs_a_norm("attention.sub_norm")),
    Rule("attention.qk_norm.unit_offset", ("attention.qk_norm",), _offset_has_a_weight(_qk_norm)),
    Rule("attention.qk_norm.scope", ("attention.qk_norm",), _of("attention", MultiHead, _each_head_has_weights)),
    Rule("attention.qk_norm.cast", ("attention.qk_norm",), _cast_has_a_weight(_qk_norm)),
    Rule("mixer.n_groups", ("mixer", "d_model"), _of("mixer", Mamba2, _groups_divide_heads)),
    Rule("mixer.dt_min", ("mixer",), _of("mixer", Mamba2, _steps_have_room)),
    Rule("mixer.n_value_heads", ("mixer", "d_model"), _of("mixer", GatedDelta, _key_heads_divide_value_heads)),
    Rule("mixer.n_heads", ("mixer", "d_model"), _of("mixer", RGLRU, _heads_divide_channels)),
    Rule("mlp.sub_norm", ("mlp.sub_norm", "norm"), needs_a_norm("mlp.sub_norm")),
    Rule("mlp.active", ("mlp.active", "mlp.experts"), _of("mlp", MoE, _enough_experts)),
    Rule("mlp.router.groups.n", ("mlp.experts", "mlp.router"), _of("mlp", MoE, _groups_are_equal)),
    Rule("mlp.router.groups.kept", ("mlp.router",), _of("mlp", MoE, _groups_are_left_out)),
    Rule("mlp.router.groups.by", ("mlp.experts", "mlp.router"), _of("mlp", MoE, _groups_have_two)),
    Rule("mlp.router.groups.by", ("mlp.active", "mlp.router"), _of("mlp", MoE, _groups_leave_out_a_best)),
    Rule("mlp.router.groups", ("mlp.experts", "mlp.active", "mlp.router"), _of("mlp", MoE, _groups_hold_the_active)),
    Rule("mlp.clamp", ("mlp.clamp", "mlp.gated"), _of("mlp", MoE, _only_gated("clamp"))),
    Rule("mlp.up_offset", ("mlp.up_offset", "mlp.gated"), _of("mlp", MoE, _only_gated("up_offset"))),
    Rule("mlp.balance.pooled", ("mlp.balance",), _of("mlp", MoE, _pooled_has_a_loss)),
    Rule("norm.unit_offset", ("norm",), _offset_has_a_weight(_norm)),
    Rule("norm.cast", ("norm",), _cast_has_a_weight(_norm)),
    Rule("position.fraction", ("position", *_ROTARY_WIDTH), _rope_turns_pairs),
    Rule("position.order", ("position", "attention.qk_norm"), _order_matters),
    Rule("position.scaling", ("position", *_ROTARY_WIDTH), _longrope_has_a_factor_per_pair),
    Rule("position.scaling.factor", ("position",), _longrope_has_one_factor),
    Rule("position.scaling.factor", ("position",), _yarn_stretches),
    Rule("position.scaling", ("position", *_ROTARY_WIDTH), _scaling_has_pairs_to_turn),
    Rule("position.scaling", ("position",), _scaling_bands_in_order),
    Rule("position.max_distance", ("position",), _t5_buckets_reach),
    Rule("block.parallel", ("block", "norm", *COMPONENTS), _parallel_has_a_norm_before),
    *(Rule(f"block.{name}_multiplier", ("block", name), _multiplier_has_a_branch(name)) for name in COMPONENTS),
)
