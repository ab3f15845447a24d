"""Every rule between fields, as two tables: one asked of each layer kind, one of the whole config.

A rule names the field it blames and the fields it reads, and says what was found and what is allowed (or
nothing). It is asked only when all those fields are valid by themselves, so one mistake is reported once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import choose
from archlab.config.schema import Config

T = TypeVar("T")


@dataclass(frozen=True)
class Rule(Generic[T]):
    """`broken` says what was found and what is allowed, or None when the rule holds."""

    field: str
    reads: tuple[str, ...]
    broken: Callable[[T], str | None]


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def _heads_divide_d_model(m: ModelConfig) -> str | None:
    heads = m.attention.n_heads
    if m.attention.head_dim or m.d_model % heads == 0:
        return None
    return f"{heads} does not divide d_model = {m.d_model}; give head_dim, or one of {_divisors(m.d_model)}"


def _kv_heads_divide_heads(m: ModelConfig) -> str | None:
    heads, kv_heads = m.attention.n_heads, m.attention.n_kv_heads
    if kv_heads is None or heads % kv_heads == 0:
        return None
    return f"{kv_heads} does not divide n_heads = {heads}; allowed: {_divisors(heads)}"


def _rope_turns_pairs(m: ModelConfig) -> str | None:
    if m.position.kind != "rope":
        return None
    head_dim = resolve(m).attention.head_dim or 0
    turning = int(head_dim * m.position.fraction)
    if turning >= 2 and turning % 2 == 0:
        return None
    found = f"{m.position.fraction} of head_dim = {head_dim} is {turning} dimensions"
    return f"{found}; RoPE turns pairs: allowed are even numbers from 2"


def _parallel_has_a_norm_before(m: ModelConfig) -> str | None:
    if m.block.parallel == "none":
        return None
    if m.norm.kind == "none":
        separate = m.block.parallel == "separate"
        return "'separate' has no second norm to be separate; allowed: none, shared" if separate else None
    if m.norm.placement in ("pre", "double"):
        return None
    found = f"{m.block.parallel!r} is about the norm before the branches"
    return f"{found}; placement {m.norm.placement} has none; allowed: none"


LAYER_RULES: tuple[Rule[ModelConfig], ...] = (
    Rule("attention.n_heads", ("attention.n_heads", "attention.head_dim", "d_model"), _heads_divide_d_model),
    Rule("attention.n_kv_heads", ("attention.n_kv_heads", "attention.n_heads"), _kv_heads_divide_heads),
    Rule(
        "position.fraction",
        ("position", "attention.n_heads", "attention.head_dim", "d_model"),
        _rope_turns_pairs,
    ),
    Rule("block.parallel", ("block", "norm"), _parallel_has_a_norm_before),
)


def _pattern_names_exist(c: Config) -> str | None:
    layers = c.model.layers
    if layers is None or set(layers.pattern) <= set(layers.kinds):
        return None
    missing = sorted(set(layers.pattern) - set(layers.kinds))
    return f"no layer kind {', '.join(missing)}{choose(missing[0], list(layers.kinds))}"


def _layer_kinds_are_used(c: Config) -> str | None:
    layers = c.model.layers
    unused = sorted(set(layers.kinds) - set(layers.pattern[: c.model.n_layers])) if layers else []
    if not unused:
        return None
    return f"{', '.join(unused)} never comes up in {c.model.n_layers} layers; use it or leave it out"


def _learned_positions_suffice(c: Config) -> str | None:
    seq_len = c.train.seq_len
    if c.model.position.kind != "learned" or seq_len is None or seq_len <= c.model.max_seq_len:
        return None
    return f"{seq_len} is beyond model.max_seq_len = {c.model.max_seq_len}, where learned positions end"


def _batch_holds_sequences(c: Config) -> str | None:
    seq_len = c.train.seq_len or c.model.max_seq_len
    if c.train.batch_tokens % seq_len == 0:
        return None
    return f"{c.train.batch_tokens} is not a multiple of the sequence length {seq_len}"


def _micro_batch_divides(c: Config) -> str | None:
    micro, seq_len = c.train.micro_batch_tokens, c.train.seq_len or c.model.max_seq_len
    if micro is None or (c.train.batch_tokens % micro == 0 and micro % seq_len == 0):
        return None
    return f"{micro} must divide batch_tokens = {c.train.batch_tokens} and hold whole sequences of {seq_len}"


def _one_step_at_least(c: Config) -> str | None:
    if c.train.tokens >= c.train.batch_tokens:
        return None
    return f"{c.train.tokens} is less than one batch of {c.train.batch_tokens} tokens"


def _decay_is_for_wsd(c: Config) -> str | None:
    if c.train.decay is None or c.train.schedule == "wsd":
        return None
    return f"only schedule wsd has a decay phase; schedule is {c.train.schedule}"


def _constant_ends_at_its_peak(c: Config) -> str | None:
    if c.train.final_lr is None or c.train.schedule != "constant":
        return None
    return "schedule constant never changes; leave it out"


_SEQ_LEN = ("train.seq_len", "model.max_seq_len")

CONFIG_RULES: tuple[Rule[Config], ...] = (
    Rule("model.layers.pattern", ("model.layers",), _pattern_names_exist),
    Rule("model.layers", ("model.layers", "model.n_layers"), _layer_kinds_are_used),
    Rule("train.seq_len", (*_SEQ_LEN, "model.position"), _learned_positions_suffice),
    Rule("train.batch_tokens", (*_SEQ_LEN, "train.batch_tokens"), _batch_holds_sequences),
    Rule(
        "train.micro_batch_tokens",
        (*_SEQ_LEN, "train.batch_tokens", "train.micro_batch_tokens"),
        _micro_batch_divides,
    ),
    Rule("train.tokens", ("train.tokens", "train.batch_tokens"), _one_step_at_least),
    Rule("train.decay", ("train.decay", "train.schedule"), _decay_is_for_wsd),
    Rule("train.final_lr", ("train.final_lr", "train.schedule"), _constant_ends_at_its_peak),
)
