"""Rules between the sections of a layer (norm, positions, branches), collected in LAYER_RULES together with the rules
of components and muP.

Each rule is checked for the model and for each of its layer kinds.
"""

from collections.abc import Callable
from typing import Any

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Absent
from archlab.config.components.norm import Norm
from archlab.config.components.position import T5, Rope
from archlab.config.components.rope_scaling import DynamicNTK, Llama3Scaling, Longrope, Proportional, Yarn
from archlab.config.layers import COMPONENTS
from archlab.config.model_schema import ModelConfig
from archlab.config.rules.component_rules import COMPONENT_RULES, HEAD_WIDTH, qk_norm
from archlab.config.rules.mup_rules import MUP_LAYER_RULES
from archlab.config.rules.rule import Rule, cast_has_a_weight, offset_has_a_weight


def _rotary(m: ModelConfig) -> tuple[str, int] | None:
    if not isinstance(m.position, Rope) or not isinstance(m.attention, AnyAttention):
        return None
    attention = m.attention.resolve(m.d_model)
    return f"{attention.rotary_field} = {attention.rotary_width}", attention.rotary_width


def _rope_rotates_pairs(m: ModelConfig) -> str | None:
    rotary = _rotary(m)
    if rotary is None or not isinstance(m.position, Rope):
        return None
    field, width = rotary
    rotated = int(width * m.position.fraction)
    if rotated >= 2 and rotated % 2 == 0:
        return None
    problem = f"{m.position.fraction} of {field} is {rotated} dimensions"
    return f"{problem}; RoPE rotates pairs; allowed: even numbers from 2"


def _a_layer_has_a_branch(m: ModelConfig) -> str | None:
    if not all(isinstance(getattr(m, name), Absent) for name in COMPONENTS):
        return None
    return "none, but the layer has neither a mixer nor an MLP, so it does nothing; add one of them"


def _multiplier_has_a_branch(name: str) -> Callable[[ModelConfig], str | None]:
    def broken(m: ModelConfig) -> str | None:
        is_absent = isinstance(getattr(m, name), Absent) and getattr(m.block, f"{name}_multiplier") != 1
        return f"applies to {name}, but {name}.kind is none; leave it out" if is_absent else None

    return broken


def _parallel_has_a_norm_before(m: ModelConfig) -> str | None:
    if m.block.parallel == "none":
        return None
    if isinstance(m.mlp, Absent) or all(isinstance(x, Absent) for x in (m.attention, m.mixer)):
        problem = f"{m.block.parallel!r} puts an MLP next to attention or a mixer"
        return f"{problem}, but this layer lacks one of the two; allowed: 'none'"
    if not isinstance(m.norm, Norm):
        separate = m.block.parallel == "separate"
        return "'separate' needs a second norm, but norm.kind is none; allowed: none, shared" if separate else None
    if m.block.parallel == "separate" and not m.norm.n_parameters(1):
        return "'separate' needs two norms, but norms without weight and bias are identical; allowed: none, shared"
    if m.norm.placement in ("pre", "double"):
        return None
    problem = f"{m.block.parallel!r} needs a norm before the branches"
    has = "adds its output to the stream" if m.norm.placement == "carried" else "has none"
    return f"{problem}, but placement {m.norm.placement} {has}; allowed: 'none', or placement pre or double"


def _attention_norm_is_its_own(m: ModelConfig) -> str | None:
    if m.block.attention_norm:
        return None
    if isinstance(m.attention, Absent) or not isinstance(m.norm, Norm):
        return "false removes the norm of attention, but the layer has none; allowed: true"
    if m.block.parallel != "none" or not isinstance(m.mixer, Absent):
        return "false, but attention shares its norm with another branch of its stage; allowed: true"
    if m.norm.placement == "carried":
        return "false, but placement carried adds attention to its normalized input; allowed: true"
    return None


def _mlp_output_norm_is_new(m: ModelConfig) -> str | None:
    if not m.block.mlp_output_norm:
        return None
    if isinstance(m.mlp, Absent) or not isinstance(m.norm, Norm):
        return "true adds a norm to the MLP, but the layer lacks an MLP or a norm; allowed: false"
    if m.norm.placement != "pre":
        return f"true, but norm.placement is {m.norm.placement}; allowed: false, or placement pre"
    return None


def _order_matters(m: ModelConfig) -> str | None:
    if isinstance(m.attention, Absent) or not isinstance(m.position, Rope) or m.position.order == "after_qk_norm":
        return None
    norm = qk_norm(m)
    if norm is None or norm.kind == "none":
        return "before_qk_norm needs a norm of queries and keys (attention.qk_norm), but the layer has none"
    # A rotation keeps the mean square. These two scalings also multiply, which a norm after them undoes.
    keeps_length = m.position.scaling.kind not in ("yarn", "longrope")
    if norm.kind == "rmsnorm" and not norm.weight and keeps_length:
        return "an RMS norm without weight gives the same result before and after the rotation; leave it out"
    return None


def _longrope_has_one_factor(m: ModelConfig) -> str | None:
    match m.position:
        case Rope(scaling=Longrope(attention_factor=float(), factor=factor)) if factor > 1:
            return "has no effect, because attention_factor is set; allowed: 1, or attention_factor = null"
        case _:
            return None


def _longrope_has_a_factor_per_pair(m: ModelConfig) -> str | None:
    match m.position:
        case Rope(scaling=Longrope(short_factor=short, long_factor=long)) if rotary := _rotary(m):
            field, width = rotary
            pairs, lengths = int(width * m.position.fraction) // 2, {len(short), len(long)}
            problem = (
                f"lists of {sorted(lengths)} factors, but {field} has {pairs} rotated pairs; allowed: {pairs} factors"
            )
            return None if lengths == {pairs} else problem
        case _:
            return None


def _scaling_has_pairs_to_rotate(m: ModelConfig) -> str | None:
    rotary = _rotary(m)
    if rotary is None or not isinstance(m.position, Rope):
        return None
    n = int(rotary[1] * m.position.fraction)
    match m.position.scaling:
        case DynamicNTK() if n == 2:
            problem = f"of {rotary[0]}, 2 rotated dimensions are one pair"
            return f"dynamic needs at least two rotated pairs, but {problem}; rotate more"
        case Proportional(turning=turning) as scaling if scaling.rotated_pairs(n) < 1:
            return (
                f"turning {turning} of the {n // 2} pairs of {rotary[0]} is less than one pair; to rotate nothing, set "
                "position.kind=none"
            )
        case _:
            return None


def _scaling_bands_in_order(m: ModelConfig) -> str | None:
    if not isinstance(m.position, Rope):
        return None
    match m.position.scaling:
        case Llama3Scaling(low_freq_factor=low, high_freq_factor=high) if low >= high:
            return f"low_freq_factor {low} must be below high_freq_factor {high}"
        case Yarn(beta_slow=low, beta_fast=high) if low > high:
            return f"beta_slow {low} must not be above beta_fast {high}"
        case _:
            return None


def _t5_buckets_reach(m: ModelConfig) -> str | None:
    if not isinstance(m.position, T5):
        return None
    directions = 2 if _sees_later_keys(m) else 1
    single = m.position.buckets // directions // 2
    if m.position.max_distance > single:
        return None
    problem = f"{m.position.max_distance} leaves no room for logarithmic buckets"
    return f"{problem}; allowed: more than {single}"


def _t5_buckets_divide(m: ModelConfig) -> str | None:
    if (
        not isinstance(m.position, T5)
        or not _sees_later_keys(m)
        or (m.position.buckets >= 4 and m.position.buckets % 2 == 0)
    ):
        return None
    problem = f"{m.position.buckets}, but half of the buckets are for later keys (attention.visibility)"
    return f"{problem}; allowed: even numbers from 4"


def _sees_later_keys(m: ModelConfig) -> bool:
    return isinstance(m.attention, AnyAttention) and m.attention.sees_later_keys


_ROTARY_WIDTH = (*HEAD_WIDTH, "attention.rope_dim")


def _norm(m: ModelConfig) -> Any:
    return m.norm


LAYER_RULES: tuple[Rule[ModelConfig], ...] = (
    *COMPONENT_RULES,
    *MUP_LAYER_RULES,
    Rule("attention.kind", COMPONENTS, _a_layer_has_a_branch),
    Rule("norm.unit_offset", ("norm",), offset_has_a_weight(_norm)),
    Rule("norm.cast", ("norm",), cast_has_a_weight(_norm)),
    Rule("position.fraction", ("position", *_ROTARY_WIDTH), _rope_rotates_pairs),
    Rule("position.order", ("position", "attention.qk_norm"), _order_matters),
    Rule("position.scaling", ("position", *_ROTARY_WIDTH), _longrope_has_a_factor_per_pair),
    Rule("position.scaling.factor", ("position",), _longrope_has_one_factor),
    Rule("position.scaling", ("position", *_ROTARY_WIDTH), _scaling_has_pairs_to_rotate),
    Rule("position.scaling", ("position",), _scaling_bands_in_order),
    Rule("position.max_distance", ("position", "attention"), _t5_buckets_reach),
    Rule("position.buckets", ("position", "attention"), _t5_buckets_divide),
    Rule("block.attention_norm", ("block", "norm", *COMPONENTS), _attention_norm_is_its_own),
    Rule("block.mlp_output_norm", ("block", "norm", "mlp"), _mlp_output_norm_is_new),
    Rule("block.parallel", ("block", "norm", *COMPONENTS), _parallel_has_a_norm_before),
    *(Rule(f"block.{name}_multiplier", ("block", name), _multiplier_has_a_branch(name)) for name in COMPONENTS),
)
