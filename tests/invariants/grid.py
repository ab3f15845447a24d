"""Pairwise grid over all architectural choices: some config contains each pair of values that the rules allow.

Drawing all rows takes half a minute. So grid.json keeps them, and only pairs of values that it lacks are drawn when this
module is imported. `python tests/invariants/grid.py` draws all rows again and writes the file.
"""

import functools
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from archlab.config.check import broken_rules
from archlab.config.components.activation import Activation
from archlab.config.components.rope_scaling import DynamicNTK, Longrope
from archlab.config.core.merge import Raw
from archlab.config.core.registry import kinds
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.layers import layer_configs, sees_as
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.decoder import Decoder

VOCABULARY, SEQ_LEN, AT_LEAST = 23, 26, 320
STORED = Path(__file__).with_name("grid.json")
Pair = tuple[str, Any, str, Any]
Rows = dict[tuple[str, ...], dict[str, Any]]
"""Overrides -> their row."""
BASE: dict[str, Any] = {
    "model": {"vocab_size": VOCABULARY, "d_model": 24, "n_layers": 2, "max_seq_len": 32, "attention": {"n_heads": 4}}
}


def _rope(scaling: str, more: str = "") -> str:
    return f"model.position={{kind: rope, theta: 50{more}, scaling: {{{scaling}}}}}"


def _position(text: str) -> str:
    return f"model.position={{{text}}}"


def _layers(text: str) -> str:
    return f"model.layers={{{text}}}"


NOTHING = ()
FACTORS: dict[str, list[Any]] = {
    # heads have width 8 in every row, which decides the length of longrope's lists
    "heads": [
        "model.attention={n_heads: 4, head_dim: 8}",
        "model.attention={n_heads: 4, head_dim: 8, n_kv_heads: 2}",
        "model.attention={n_heads: 4, head_dim: 8, n_kv_heads: 1}",
        "model.attention={n_heads: 3}",
        "model.attention={n_heads: 6, head_dim: 8, n_kv_heads: 3}",
        "model.attention={n_heads: 4, head_dim: 8, n_kv_heads: 2, v_dim: 5}",
        "model.attention={kind: latent, n_heads: 3, q_rank: 10, kv_rank: 9, nope_dim: 5, rope_dim: 8, v_dim: 7}",
        "model.attention={kind: latent, n_heads: 4, kv_rank: 6, nope_dim: 4, rope_dim: 8, norm_eps: 0.1}",
    ],
    "norm": [
        f"model.norm={{{kind}, eps: 0.01}}"
        for kind in (
            "kind: rmsnorm",
            "kind: rmsnorm, weight: false",
            "kind: rmsnorm, unit_offset: true",
            "kind: rmsnorm, cast: before_weight",
            "kind: layernorm",
            "kind: layernorm, bias: false",
            "kind: layernorm, bias: false, weight: false",
            "kind: layernorm, unit_offset: true",
            "kind: prmsnorm, share: 0.4",
            "kind: scalenorm",
        )
    ]
    + ["model.norm={kind: dyt, alpha: 0.7}", "model.norm={kind: none}"],
    "placement": [NOTHING, *(f"model.norm.placement={p}" for p in ("post", "double", "output", "carried"))],
    "parallel": [NOTHING, "model.block.parallel=shared", "model.block.parallel=separate"],
    "multipliers": [NOTHING, "model.block={attention_multiplier: 0.5, mlp_multiplier: 0.7}"],
    # besides attention; instead of it in some values of "layers"
    "mixer": [
        NOTHING,
        *(
            f"model.mixer={{{text}}}"
            for text in (
                "kind: mamba, inner_norm: {kind: rmsnorm, weight: false}",
                "kind: mamba, inner_width: 20, d_state: 3, dt_rank: 5, taps: 2, conv_bias: false, in_bias: true, "
                "out_bias: true, inner_norm: {kind: rmsnorm, eps: 0.01, cast: before_weight, unit_offset: true}",
                "kind: mamba2, head_dim: 8, d_state: 3, taps: 2",
                "kind: mamba2, n_heads: 6, head_dim: 4, n_groups: 3, d_state: 5, conv_bias: false, in_bias: true, "
                "out_bias: true, dt_min: 0.1, dt_max: 1.5, norm: {eps: 0.01, gate: after}",
                "kind: mamba2, n_heads: 2, head_dim: 8, d_state: 4, norm: none",
                "kind: gated_delta, key_dim: 6",
                "kind: gated_delta, n_key_heads: 2, n_value_heads: 6, key_dim: 5, value_dim: 4, taps: 3, "
                "negative_eigenvalues: true, norm_eps: 0.01",
                "kind: kimi_delta, key_dim: 6",
                "kind: kimi_delta, n_key_heads: 2, n_value_heads: 4, key_dim: 5, value_dim: 4, taps: 3, "
                "negative_eigenvalues: true, norm_eps: 0.01, low_rank: false, decay_bound: 1",
                "kind: rglru",
                "kind: rglru, lru_width: 30, n_heads: 5, taps: 2",
                "kind: short_conv",
            )
        ),
        ("model.mixer={kind: short_conv, taps: 5, bias: true}", "model.block.mixer_multiplier=0.6"),
    ],
    "position": [
        _position("kind: none"),
        _position("kind: sinusoidal"),
        _position("kind: sinusoidal, layout: halves, theta: 100"),
        _position("kind: sinusoidal, offset: 3"),
        _position("kind: learned"),
        _position("kind: learned, offset: 2"),
        _position("kind: shaw, max_distance: 4"),
        _position("kind: transformer_xl"),
        _position("kind: t5, buckets: 6, max_distance: 12"),
        _position("kind: t5, buckets: 6, max_distance: 12, shared: false"),
        _position("kind: alibi"),
        _position("kind: alibi, max_bias: 4"),
        _position("kind: alibi, form: falcon"),
        _position("kind: rope, theta: 50"),
        _position("kind: rope, theta: 50, fraction: 0.5, pairing: interleaved"),
        _position("kind: rope, theta: 50, order: before_qk_norm"),
        _rope("kind: linear, factor: 2"),
        _rope("kind: dynamic, factor: 2, original_max_seq_len: 8"),
        _rope("kind: llama3, factor: 4, original_max_seq_len: 16, low_freq_factor: 0.7, high_freq_factor: 3"),
        _rope("kind: yarn, factor: 4, original_max_seq_len: 64, beta_fast: 8"),
        _rope(
            "kind: yarn, factor: 4, original_max_seq_len: 64, beta_fast: 8, beta_slow: 1.5, truncate: false",
            ", pairing: interleaved",
        ),
        _rope("kind: yarn, factor: 4, original_max_seq_len: 64, beta_fast: 8, attention_factor: 0.6"),
        _rope(
            "kind: longrope, factor: 4, original_max_seq_len: 64, "
            "short_factor: [1, 1.5, 2, 3], long_factor: [2, 3, 4, 5]"
        ),
        _rope(
            "kind: longrope, factor: 1, attention_factor: 1.3, long_attention_factor: 1.6, original_max_seq_len: 8, "
            "short_factor: [1, 1.5, 2, 3], long_factor: [2, 3, 4, 5]"
        ),
        _rope("kind: proportional, turning: 0.5"),
    ],
    "visibility": [
        NOTHING,
        "model.attention.window=1",
        "model.attention.window=3",
        ("model.attention.visibility=prefix", "model.attention.window=5"),
        "model.attention.visibility=two_sided",
        ("model.attention.visibility=two_sided", "model.attention.window=3", "model.attention.global_tokens=2"),
        ("model.attention.window=3", "model.attention.stride=4"),
        ("model.attention.window=2", "model.attention.global_tokens=2"),
        ("model.attention.window=3", "model.attention.stride=5", "model.attention.global_tokens=1"),
        "model.attention.blocks={size: 4, summary: 1}",
        "model.attention.blocks={size: 5, summary: 3}",
        "model.attention.blocks={size: 5, summary: 0}",
    ],
    "qk_norm": [
        NOTHING,
        *(
            f"model.attention.qk_norm={{{norm}}}"
            for norm in (
                "kind: rmsnorm, eps: 0.01, cast: before_weight",
                "kind: rmsnorm, scope: width",
                "kind: rmsnorm, weight: false, scope: width",
                "kind: rmsnorm, unit_offset: true, scope: each_head",
                "kind: layernorm, eps: 0.01, weight: false",
                "kind: layernorm, bias: false, scope: each_head",
                "kind: layernorm, unit_offset: true, scope: width",
            )
        ),
    ],
    "sinks": [NOTHING, "model.attention.sinks=true"],
    "gate": [
        NOTHING,
        "model.attention.gate={per: element}",
        "model.attention.gate={per: head, activation: softplus, bias: true}",
    ],
    "temperature": [NOTHING, "model.attention.temperature={beta: 0.7, length: 6, offset: 1}"],
    "clip": [NOTHING, "model.attention.clip_qkv=0.9"],
    "softcap": [NOTHING, "model.attention.softcap=1.5"],
    "scale": [NOTHING, "model.attention.scale=0.6"],
    "values": [
        NOTHING,
        "model.attention.v_norm={eps: 0.01}",
        "model.attention.keys_as_values=true",
        ("model.attention.keys_as_values=true", "model.attention.v_norm={}"),
    ],
    "attention_bias": [
        NOTHING,
        "model.attention.qkv_bias=true",
        "model.attention.out_bias=true",
        ("model.attention.qkv_bias=true", "model.attention.out_bias=true"),
    ],
    "attention_sub_norm": [NOTHING, "model.attention.sub_norm=true"],
    "mlp": [
        "model.mlp.kind=gated",
        "model.mlp.kind=plain",
        "model.mlp={kind: gated, d_ff: 20, sub_norm: true}",
        "model.mlp={kind: gated, clamp: 0.6, up_offset: 1}",
        "model.mlp={kind: moe, experts: 4, active: 1, d_ff: 12, router: {normalise: false}, balance: {pooled: true}}",
        "model.mlp={kind: moe, experts: 6, router: {score: sigmoid, factor: 1.5, bias: true, "
        "correction: {rate: 0.1}, groups: {n: 3, kept: 2}}, shared: {}}",
        "model.mlp={kind: moe, active: 3, d_ff: 8, router: {normalise: false, groups: {n: 4, kept: 2, by: max}}, "
        "clamp: 0.6, up_offset: 0.5, shared: {d_ff: 20, gate: true, bias: true}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, gated: false, balance: {loss: 0.1, router_z_loss: 0.01}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, latent: {width: 20}, router: {score: sigmoid, applied_to: input}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, router: {sparsemixer: 0.3, normalise: false}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, router: {norm: true, bias: true, correction: {}}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, gated: false, latent: {width: 6, bias: true}, shared: {}}",
        "model.mlp={kind: moe, experts: 4, d_ff: 8, own_norms: true, router: {norm: true, expert_scale: true}, "
        "shared: {d_ff: 20, gate: true}}",
    ],
    "activation": [f"model.mlp.activation={name}" for name in kinds(Activation)],
    "mlp_bias": [NOTHING, "model.mlp.bias=true"],
    "embedding": [
        NOTHING,
        "model.embedding={scale: sqrt_d_model, round_scale: true}",
        "model.embedding.norm=true",
        "model.embedding={scale: 3.0, norm: true}",
        "model.embedding={width: 10}",
        "model.embedding={segments: 2, norm: sum}",
        "model.embedding={segments: 3, norm: sum, width: 10, widened: sum}",
    ],
    "head": [
        "model.head.tied=false",
        "model.head={tied: true, bias: true}",
        "model.head={bias: true, scale: 0.5}",
        "model.head={transform: {bias: false}}",
        "model.head={tied: true, bias: true, transform: {activation: relu, norm: false}}",
    ],
    "head_cap": [NOTHING, "model.head.softcap=3.0"],
    "layers": [
        NOTHING,
        _layers("local: {attention.window: 2}, full: {}, pattern: [local, full]"),
        _layers("a: {position.kind: none}, b: {}, pattern: [b, a]"),
        _layers("a: {block.mlp_output_norm: true}, b: {}, pattern: [a, b]"),
        _layers("a: {block.stream_scale: true}, b: {}, pattern: [a, b]"),
        _layers("first: {block.attention_norm: false}, rest: {}, pattern: [first, rest]"),
        _layers("a: {position: {kind: rope, theta: 7}}, b: {}, pattern: [a, b]"),
        _layers(
            "a: {attention.n_heads: 2, attention.n_kv_heads: 1, attention.head_dim: 8, mlp.d_ff: 12}, b: {}, pattern: [b, a]"
        ),
        _layers(
            "a: {attention: none, mixer: {kind: mamba2, n_heads: 3, head_dim: 8, d_state: 4}}, b: {}, pattern: [a, b]"
        ),
        _layers("a: {attention: none, mixer: {kind: gated_delta, key_dim: 8}, mlp: none}, b: {}, pattern: [b, a]"),
        _layers("a: {attention: none, mixer: short_conv}, b: {mlp: none}, pattern: [a, b]"),
        _layers("a: {norm: {kind: rmsnorm}, block.parallel: none, mlp.kind: plain}, b: {}, pattern: [a, b]"),
    ],
}


ORDER = {factor: i for i, factor in enumerate(FACTORS)}


def _overrides(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the overrides of a row, in the order of FACTORS."""
    values = (row[factor] for factor in FACTORS)
    return tuple(o for value in values for o in ((value,) if isinstance(value, str) else value))


@functools.cache
def _parsed(override: str) -> Raw:
    return parse_overrides([override])[0]


@functools.cache
def _is_valid(overrides: tuple[str, ...]) -> bool:
    """Return whether `build_config` would accept the overrides. It makes no messages, because thousands of rows are tried."""
    change = dict(itertools.chain.from_iterable(_parsed(override).items() for override in overrides))
    try:
        return not broken_rules(Config.model_validate(overlay(BASE, change, Config)))
    except (UserError, ValidationError):
        return False


def _pairs(row: dict[str, Any]) -> set[Pair]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(FACTORS, 2)}


def _filled(row: dict[str, Any], missing: set[Any], draw: random.Random) -> dict[str, Any]:
    """Fill the other factors in random order, each with the value that adds the most missing pairs."""

    def gain(factor: str, value: Any) -> int:
        at = ORDER[factor]
        pairs = ((factor, value, o, v) if at < ORDER[o] else (o, v, factor, value) for o, v in row.items())
        return sum(pair in missing for pair in pairs)

    for factor in draw.sample([f for f in FACTORS if f not in row], len(FACTORS) - len(row)):
        values = draw.sample(FACTORS[factor], len(FACTORS[factor]))
        row[factor] = max(values, key=functools.partial(gain, factor))
    return row


def _rows_with(pair: dict[str, Any], missing: set[Any], draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the greedy row and its valid part, then the pair alone with any single other value that it needs."""
    greedy = _filled(dict(pair), missing, draw)
    yield greedy
    least = {factor: values[0] for factor, values in FACTORS.items()}
    needed = ({factor: value} for factor, values in FACTORS.items() for value in values)
    for other in itertools.chain(({},), needed):
        row = least | other | pair
        if not _is_valid(_overrides(row)):
            continue
        others = draw.sample([f for f in FACTORS if f not in pair | other], len(FACTORS) - len(pair | other))
        yield _fuller(row, {factor: greedy[factor] for factor in others})


def _fuller(row: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Add values to the row, except those that the rules forbid: all at once, or one half after the other."""
    if _is_valid(_overrides(row | more)):
        return row | more
    if len(more) == 1:
        return row
    factors = list(more.items())
    middle = len(factors) // 2
    return _fuller(_fuller(row, dict(factors[:middle])), dict(factors[middle:]))


def _drawn(rows: Rows, impossible: set[Pair]) -> tuple[Rows, set[Pair]]:
    """Return the rows, extended until they contain all pairs of values, and the pairs that no row can contain."""
    draw = random.Random(0)
    pairs = [(a, x, b, y) for a, b in itertools.combinations(FACTORS, 2) for x in FACTORS[a] for y in FACTORS[b]]
    rows, impossible = dict(rows), impossible.intersection(pairs)
    missing = set(pairs).difference(impossible, *map(_pairs, rows.values()))
    for pair in pairs:
        if pair not in missing:
            continue
        a, x, b, y = pair
        for row in _rows_with({a: x, b: y}, missing, draw):
            if _is_valid(_overrides(row)):
                rows[_overrides(row)] = row
                missing -= _pairs(row)
                break
        else:
            impossible.add(pair)
            missing.discard(pair)
    while len(rows) < AT_LEAST:
        row = {f: draw.choice(values) for f, values in FACTORS.items()}
        if _is_valid(_overrides(row)):
            rows[_overrides(row)] = row
    return rows, impossible


def stored() -> tuple[Rows, set[Pair]]:
    """Return the rows and impossible pairs of grid.json, without those whose factors or values no longer exist."""
    text = json.loads(STORED.read_text(encoding="utf-8"))
    values = {
        f: [value if isinstance(value, str) else tuple(value) for value in text["values"][f]] for f in text["values"]
    }
    rows = [{f: values[f][number] for f, number in zip(values, row, strict=True)} for row in text["rows"]]
    rows = [row for row in rows if list(row) == list(FACTORS) and all(row[f] in FACTORS[f] for f in row)]
    return {_overrides(row): row for row in rows}, {
        (a, values[a][x], b, values[b][y]) for a, x, b, y in text["left_out"]
    }


def store(rows: Rows, impossible: set[Pair]) -> None:
    """Write grid.json: the values, and rows and pairs as indices of values."""
    values = [f"  {json.dumps(f)}: {json.dumps(FACTORS[f])}" for f in FACTORS]
    places = [f"  {[FACTORS[f].index(row[f]) for f in FACTORS]}" for row in rows.values()]
    pairs = sorted([a, FACTORS[a].index(x), b, FACTORS[b].index(y)] for a, x, b, y in impossible)
    values, places, pairs = (",\n".join(lines) for lines in (values, places, [f"  {json.dumps(p)}" for p in pairs]))
    text = f'{{"values": {{\n{values}\n}}, "rows": [\n{places}\n], "left_out": [\n{pairs}\n]}}\n'
    STORED.write_text(text, encoding="utf-8")


@functools.cache
def _grid() -> tuple[Rows, set[Pair]]:
    return _drawn(*stored())


@functools.cache
def grid() -> tuple[tuple[str, ...], ...]:
    """Return at least AT_LEAST sets of overrides, the same in every run."""
    return tuple(_grid()[0])


def rows_with_each_override(times: int) -> list[int]:
    """Return rows in which every override occurs `times` times, if it occurs that often in all rows."""
    chosen, seen = list[int](), Counter[str]()
    for index, overrides in enumerate(grid()):
        if any(seen[override] < times for override in overrides):
            chosen.append(index)
            seen.update(overrides)
    return chosen


def covering(*factors: str, alone: str | None = None) -> list[int]:
    """Return rows that cover all pairs of values of these factors, and all values of the factor `alone`."""
    chosen, seen = list[int](), set[Any]()
    for index, row in enumerate(_grid()[0].values()):
        values = [(factor, _value(row, factor)) for factor in factors]
        pairs: set[Any] = {*itertools.combinations(values, 2), alone and row[alone]}
        if not pairs <= seen:
            chosen.append(index)
            seen |= pairs
    return chosen


def _value(row: dict[str, Any], factor: str) -> Any:
    """Return the row's value of a factor. For a position it is the kind; for a bias, the kind of position that makes one."""
    if factor not in ("position", "bias"):
        return row[factor]
    kind = row["position"].partition("kind: ")[2].partition(",")[0].rstrip("}")
    return kind if factor == "position" or kind in ("alibi", "t5", "shaw", "transformer_xl") else None


def left_out() -> set[Pair]:
    """Return pairs of values for which no valid config was found."""
    return _grid()[1]


@functools.cache
def config(index: int) -> Config:
    """Return config number `index` of the grid."""
    return build_config(BASE, grid()[index])


def randomized(config: Config, **kwargs: Any) -> Decoder:
    """Return a float64 decoder with random parameters, because zero biases and unit norms would hide errors.

    A parameter's values depend only on its name and shape.
    """
    model = Decoder(config.model, **kwargs).double().eval()
    # without norms, streams grow and saturate every softmax, so that hardly any token has weight
    size = 0.5 if config.model.norm.kind == "none" else 1.0
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            generator = torch.Generator(torch.get_default_device()).manual_seed(sum(map(ord, name)))
            drawn = torch.empty(parameter.shape, dtype=torch.float64).normal_(generator=generator)
            fan_in = parameter.shape[-1] if parameter.ndim > 1 else 1
            parameter.copy_(size * drawn / fan_in**0.5 if parameter.ndim > 1 else 0.5 + 0.4 * drawn)
            if name.endswith(("A_log", "Lambda")):  # so that states do not decay within the text
                parameter.sub_(4)
    return model


@functools.cache
def model(index: int) -> Decoder:
    """Return the decoder of config number `index` with random parameters."""
    return randomized(config(index))


def tokens(batch: int, length: int = SEQ_LEN, seed: int = 0) -> torch.Tensor:
    """Return random tokens of the grid's vocabulary."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)


def prefix(config: Config, batch: int, length: int = 9) -> torch.Tensor | None:
    """Return `length` as the prefix of each text if a layer reads a prefix, otherwise None."""
    return torch.full((batch,), length) if sees_as(config.model, "prefix") else None


def turns_by_length(config: Config, length: int = SEQ_LEN) -> bool:
    """Return whether RoPE's angles depend on the length of the text, for texts of up to `length` tokens.

    Cached decoding then differs from the full pass by design.
    """
    scalings = [getattr(layer.position, "scaling", None) for layer in layer_configs(config.model)]
    return any(isinstance(s, DynamicNTK | Longrope) and s.original_max_seq_len < length for s in scalings)


if __name__ == "__main__":
    store(*_drawn({}, set()))
