"""All mistakes are reported at once, each at its path: the value found, the allowed values, the nearest name."""

import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from archlab.config.check import validate
from archlab.config.components.activation import Activation
from archlab.config.core.base import Positive, Settings
from archlab.config.core.merge import fields_below
from archlab.config.core.registry import kinds
from archlab.config.describe import layer_table
from archlab.config.identity import config_hash, resolved
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.layers import layer_configs
from archlab.config.optimizer import LrMultipliers
from archlab.config.rules.layer_rules import LAYER_RULES
from archlab.config.rules.run_rules import CONFIG_RULES, MODEL_RULES
from archlab.config.schema import Config
from archlab.config.vocabulary import LACKING, WRITE
from archlab.errors import UserError
from archlab.exchange.configs import load_config, read_config
from archlab.pricing.summary import cost
from archlab.study.schema import StudyConfig
from schema_classes import classes_in


def problems(*overrides: str, base: str = "tiny-llama") -> dict[str, str]:
    """Path -> message."""
    with pytest.raises(UserError) as caught:
        load_config(base, *overrides)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"{len(lines)} problem")
    return dict(line.strip().split("  ", 1) for line in lines)


def test_five_errors_of_five_kinds_in_one_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
model:
  vocab_size: 256
  d_model: 128
  norm: {knd: rmsnorm}
  attention: {n_heads: 4, n_kv_heads: 3}
  mlp: {activation: swishh}
train: {lr: fast}
"""
    )
    with pytest.raises(UserError) as caught:
        load_config(file)
    lines = [line.split(maxsplit=1) for line in str(caught.value).splitlines()]
    assert lines[0] == ["5", f"problems in {file}"]
    assert {path: message.strip() for path, message in lines[1:]} == {
        "model.n_layers": "missing; it has no default",
        "model.norm.knd": "unknown; did you mean kind? allowed: kind, eps, weight, unit_offset, cast, placement",
        "model.attention.n_kv_heads": "3 does not divide n_heads = 4; allowed: 1, 2, 4",
        "model.mlp.activation": f"'swishh'; did you mean silu (swish)? allowed: {', '.join(kinds(Activation))}",
        "train.lr": "'fast'; allowed: a number",
    }


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        (
            "model.norm.kind=laynorm",
            "model.norm.kind",
            "did you mean layernorm? allowed: layernorm, rmsnorm, ",
        ),
        ("model.norm=3", "model.norm", "3; allowed: keys and values, as in 'model.norm={kind: ...}'"),
        (
            "model.attention.gate=true",
            "model.attention.gate",
            "true; allowed: keys and values, as in 'model.attention.gate={per: element}'; {} for the defaults",
        ),
        (
            "model.attention.gate=head",
            "model.attention.gate",
            "'head'; allowed: keys and values, as in 'model.attention.gate={per: ",
        ),
        (
            "model.attention.gate.per=heads",
            "model.attention.gate.per",
            "'heads'; did you mean head? allowed: element, ",
        ),
        (
            "model.mlp={kind: moe, router: {groups: 2}}",
            "model.mlp.router.groups",
            "2; allowed: keys and values, as in 'model.mlp.router.groups={n: ..., kept: ...}'",
        ),
        (
            "model.mlp={kind: moe, router: {correction: true}}",
            "model.mlp.router.correction",
            "true; allowed: keys and values, as in 'model.mlp.router.correction={rate: 0.001}'; {} for the defaults",
        ),
        ("model.layers={a: {}, pattern: [1]}", "model.layers.pattern.0", "1; allowed: text"),
        ("model.layers={a: {}, pattern: []}", "model.layers.pattern", "[]; allowed: 1 or more items"),
        ("data.reserve=[mode:]", "data.reserve.0", "{'mode': None}; allowed: mask, sentinels:N"),
        ("data.task={kind:reverse}", "data.task.kind:reverse", "write a space after the colon, as in `kind: VALUE`"),
        ("train.spikes={a:1.5}", "train.spikes.a:1", "unknown; write a space after the colon, as in `a: VALUE`"),
        ("model.d_model=1000000000", "model.d_model", "allowed: at most 1e+07"),
        ("model.n_layers=1000000000", "model.n_layers", "allowed: at most 10000"),
        ("model.attention.n_heads=1000000", "model.attention.n_heads", "allowed: at most 10000"),
        ("model.max_seq_len=1000000000000", "model.max_seq_len", "allowed: at most 1e+09"),
        ("train.tokens=1000000000000000000", "train.tokens", "allowed: at most 1e+15"),
        ("train.tokens=1e19", "train.tokens", "allowed: at most 1e+15"),
        ("train.batch_tokens=1E", "train.batch_tokens", "allowed: at most 1e+09"),
        ("train.seed=99999999999999999999", "train.seed", "allowed: at most 9223372036854775807"),
        (
            f"model.layers={{{', '.join(f'a{i}: {{}}' for i in range(101))}, pattern: [a1]}}",
            "model.layers",
            "101 layer kinds; allowed: up to 100",
        ),
        (
            f"model.layers={{a: {{}}, pattern: [{'a, ' * 10_001}]}}",
            "model.layers.pattern",
            "allowed: at most 10000 items",
        ),
        ("model.norm=rmsnorn", "model.norm.kind", "did you mean rmsnorm?"),
        ("model.norm=null", "model.norm", "null; allowed: keys and values"),
        (
            "model.norm.bias=true",
            "model.norm.bias",
            "unknown; allowed: kind, eps, weight, unit_offset, cast, placement",
        ),
        ("model.embedding.scale=sqrt", "model.embedding.scale", "allowed: a number or sqrt_d_model"),
        ("model.dropout=2", "model.dropout", "2.0; allowed: less than 1"),
        ("model.dropout.branch=1", "model.dropout.branch", "1; allowed: less than 1"),
        ("model.d_model=4.5", "model.d_model", "4.5; allowed: a whole number"),
        ("model.d_model='128'", "model.d_model", "'128'; allowed: a whole number"),
        ("model.head.tied=1", "model.head.tied", "1; allowed: true or false"),
        ("train.lr=.inf", "train.lr", "inf; allowed: a finite number"),
        ("train.tokens=0", "train.tokens", "0; allowed: at least 1"),
        ("train.warmup=1.5", "train.warmup", "1.5; allowed: a whole number or less than 1"),
        ("train.betas=[0.9, 1.0]", "train.betas.1", "1.0; allowed: less than 1"),
        ("trian.lr=1", "trian", "unknown; did you mean train? allowed: plugins, model, train, data"),
        ("model.layers={a: 3, pattern: [a]}", "model.layers.a", "3; allowed: keys and values"),
        (
            "model.layers={a: {mlp.dff: 3}, pattern: [a]}",
            "model.layers.a.mlp.dff",
            "unknown; did you mean d_ff? allowed: kind, activation, d_ff, bias",
        ),
        (
            "model.layers={a: {vocab_size: 3}, pattern: [a]}",
            "model.layers.a",
            "vocab_size cannot differ per layer; allowed: norm, block, attention, mixer, mlp, position, dropout",
        ),
        (
            "model.layers={a: {position.kind: learned}, pattern: [a]}",
            "model.layers.a.position",
            "learned is added once, to the embedding",
        ),
    ],
)
def test_one_mistake_is_one_line(override, path, message):
    found = problems(override)
    assert list(found) == [path]
    assert message in found[path]


@pytest.mark.parametrize(
    ("typed", "path", "said"),
    [
        ("model.position.kind=nope", "model.position.kind", "'nope'; write model.position.kind=none; allowed: sinusoidal, "),
        ("model.mlp.activation=swiglu", "model.mlp.activation", "; write model.mlp.kind=gated model.mlp.activation=silu;"),
        ("model.ffn=geglu", "model.ffn", "unknown; write model.mlp.kind=gated model.mlp.activation=gelu"),
        ("model.tie_word_embeddings=false", "model.tie_word_embeddings", "unknown; write model.head.tied=false"),
        ("model.prenorm=false", "model.prenorm", "unknown; write model.norm.placement"),
        ("model.mlp=Reglu", "model.mlp.kind", "; write model.mlp.kind=gated model.mlp.activation=relu;"),
        ("model.activation=geglu", "model.activation", "unknown; write model.mlp.kind=gated model.mlp.activation=gelu"),
        ("model.attention.kind=gqa", "model.attention.kind", "'gqa'; write model.attention.n_kv_heads=2 (or another "),
        ("model.attention=mqa", "model.attention.kind", "'mqa'; write model.attention.n_kv_heads=1;"),
        ("model.attention.qk_norm=true", "model.attention.qk_norm", "true; write model.attention.qk_norm.kind=rmsnorm;"),
        ("model.attention.qk_norm=yes", "model.attention.qk_norm.kind", "'yes'; allowed: layernorm, rmsnorm, none"),
        ("norm.kind=layernorm", "norm", "unknown; write model.norm"),
        ("norm.kind=post_norm", "norm", "unknown; write model.norm.placement=post (on the stream"),
        ("model.norm.kind=Pre-LN", "model.norm.kind", "; write model.norm.placement=pre;"),
        ("model.norm.kind=rms", "model.norm.kind", "did you mean rmsnorm (rms)?"),
        ("model.norm.kind=layer-norm", "model.norm.kind", "did you mean layernorm?"),
        ("n_layers=3", "n_layers", "unknown; write model.n_layers"),
        ("num_hidden_layers=3", "num_hidden_layers", "unknown; write model.n_layers"),
        ("model.n_kv_heads=1", "model.n_kv_heads", "unknown; write model.attention.n_kv_heads"),
        ("lr=1", "lr", "unknown; write train.lr"),
        ("model.bias=true", "model.bias", "unknown; write model.norm.bias or model.mixer.bias or model.mlp.bias or model.head.bias"),
        ("train.max_steps=9", "train.max_steps", "unknown; write train.tokens (steps times train.batch_tokens)"),
        ("model.mutransfer=true", "model.mutransfer", "unknown; write model.mup.base_width=256"),
        ("model.mlp.num_experts=8", "model.mlp.num_experts", "unknown; write model.mlp.kind=moe model.mlp.experts=8"),
        ("model.layers={a: {d_ff: 8}, pattern: [a]}", "model.layers.a.d_ff", "unknown; write mlp.d_ff"),
    ],
)  # fmt: skip
def test_the_words_people_type_are_answered_with_what_to_write(typed, path, said):
    found = problems(typed)
    assert list(found) == [path]
    assert said in found[path]


@pytest.mark.parametrize(
    "typed",
    [
        "parallel.shard=full",
        "parallel.tensor=gated",
        "parallel.shard=half",
        "train.schedule=full",
        "model.norm.placement=full",
        "model.norm.placement=swiglu",
        "model.mlp.activation=bf16",
        "data.task.kind=gated",
    ],
)
def test_a_word_that_means_something_in_another_section_gets_no_hint(typed):
    field, _, value = typed.partition("=")
    assert problems(typed)[field].strip().startswith(f"'{value}'; allowed: ")


def test_a_word_that_means_something_in_this_section_of_a_layer_gets_a_hint():
    typed = "model.layers={a: {attention.window: full}, pattern: [a]}"
    assert "write model.attention.window=null;" in problems(typed)["model.layers.a.attention.window"]


@pytest.mark.parametrize("field", ["train.seed", "model.d_model", "train.tokens", "train.lora.rank"])
def test_a_limit_is_accepted_as_it_is_printed(field):
    limit = re.search(r"at most ([\d.e+]+)", problems(f"{field}={10**30}")[field])[1]
    # The unknown field makes sure that there is a problem. Other fields may not fit to so large a number.
    assert field not in problems(f"{field}={limit}", "unknown=1")


@pytest.mark.parametrize("norm", ["model.norm", "model.attention.qk_norm", "model.layers.a.norm"])
def test_a_norm_loses_what_describes_its_weight_together_with_the_weight(norm):
    """A checkpoint sets both fields, and its user cannot know that a norm without a weight has neither."""
    base = {
        "model.norm": {"kind": "rmsnorm", "cast": "before_weight", "unit_offset": True},
        "model.attention.qk_norm": {"kind": "rmsnorm", "cast": "before_weight", "unit_offset": True},
        "model.layers": {"a": {}, "pattern": ["a"]},
    }
    raw = overlay(read_config("tiny-llama"), base, Config)
    built = build_config(raw, [f"{norm}.weight=false"])
    layer = layer_configs(built.model)[0]
    found = layer.attention.qk_norm if "qk_norm" in norm else layer.norm
    assert (found.weight, found.unit_offset, found.cast) == (False, False, "after_weight")


def test_all_that_the_vocabulary_tells_to_write_is_taken():
    known = {place.path for place in fields_below(Config)}
    for words, text in WRITE.items():
        overrides = text.partition(" (")[0].split()
        assert {override.partition("=")[0] for override in overrides} <= known, words
        values = [override for override in overrides if "=" in override]
        assert load_config("tiny-llama", *values)


def test_a_word_of_the_vocabulary_has_one_meaning():
    words = [word for group in (*WRITE, *LACKING) for word in group.split()]
    assert len(words) == len(set(words))
    assert all(re.fullmatch("[a-z0-9]+", word) for word in words), "as they are looked up"


HUNDRED_KINDS = f"{{{', '.join(f'a{i}: {{mlp.d_ff: {8 + i}}}' for i in range(100))}, pattern: [{', '.join(f'a{i}' for i in range(100))}]}}"


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.n_layers=10000", f"model.layers={HUNDRED_KINDS}"],
        ["model.n_layers=10000", f"model.layers={{a: {{mlp.d_ff: 8}}, b: {{}}, pattern: [{'a, b, ' * 5000}]}}"],
        [
            "model.max_seq_len=1000000000", "train.tokens=1P",
            "model.attention={n_heads: 10000, head_dim: 10000000, window: 7, stride: 3, global_tokens: 1000000000}",
        ],
        ["model.max_seq_len=1000000000", "train.tokens=1P", "model.attention={n_heads: 4, blocks: {size: 3, summary: 2}}"],
        [
            "model.d_model=10000000", "model.vocab_size=10000000", "model.mlp.d_ff=10000000", "train.seed=9223372036854775807",
            "model.position={kind: t5, buckets: 10000000, max_distance: 1000000000}", "train.batch_tokens=1", "train.seq_len=1",
        ],
    ],
)  # fmt: skip
@pytest.mark.slow
def test_the_largest_that_is_taken_is_shown_and_counted(overrides):
    config = load_config("tiny-llama", *overrides)
    assert config_hash(build_config(resolved(config))) == config_hash(config)
    assert layer_table(config.model)
    assert cost(config).computed_training_flops_per_token > 0


ONES = [1] * 16
MOE = "model.mlp={kind: moe, experts: 8, active: 3, %s}"
MUP = ("model.mup={base_width: 64, base_head_dim: 32}",)

TWO_SIDED = "model.attention.visibility=two_sided"

BROKEN_RULES = [
    (
        ["data.mixture={code: {path: a, weight: 1}}", "data.path=b"],
        "data.path",
        "b, but data.mixture is set as well; leave one of the two out",
    ),
    (
        ["data.mixture={code: {path: a, weight: 1}}", "data.task={kind: recall}"],
        "data.mixture",
        "code and data.task = recall; allowed: one of the two",
    ),
    (
        ["model.attention={n_heads: 3, n_kv_heads: 3}"],
        "model.attention.n_heads",
        "3 does not divide d_model = 128; set head_dim",
    ),
    (["model.attention.n_kv_heads=3"], "model.attention.n_kv_heads", "3 does not divide n_heads = 4; allowed: 1, 2, 4"),
    (["model.attention.stride=2"], "model.attention.stride", "2 applies to keys beyond a window"),
    (["model.attention.global_tokens=2"], "model.attention.global_tokens", "2 applies to keys beyond a window"),
    (
        ["model.attention.window=8", "model.attention.blocks={size: 4, summary: 1}"],
        "model.attention.blocks",
        "sparse blocks replace a window",
    ),
    (
        ["model.attention.blocks={size: 4, summary: 4}"],
        "model.attention.blocks.summary",
        "4 keys are the whole block of 4 tokens; allowed: 0 to 3",
    ),
    (
        ["model.attention={kind: latent, kv_rank: 8, nope_dim: 4, rope_dim: 5}"],
        "model.position.fraction",
        "1.0 of rope_dim = 5 is 5 dimensions; RoPE rotates pairs",
    ),
    (
        ["model.attention.sub_norm=true", "model.norm=none"],
        "model.attention.sub_norm",
        "true needs a norm, but model.norm.kind is none",
    ),
    (
        ["model.mlp.sub_norm=true", "model.norm=none"],
        "model.mlp.sub_norm",
        "true needs a norm, but model.norm.kind is none",
    ),
    (
        ["model.embedding.norm=true", "model.norm=none"],
        "model.embedding.norm",
        "true needs a norm, but model.norm.kind is none",
    ),
    (
        ["model.embedding={scale: 1, round_scale: true}"],
        "model.embedding.round_scale",
        "embedding.scale is 1; allowed: f",
    ),
    (
        ["model.attention.qk_norm={kind: layernorm, weight: false, unit_offset: true}"],
        "model.attention.qk_norm.unit_offset",
        "applies to the weight of the norm, but",
    ),
    (
        ["model.attention.qk_norm={kind: rmsnorm, weight: false, cast: before_weight}"],
        "model.attention.qk_norm.cast",
        "applies to the weight of the norm, but",
    ),
    (["model.norm.weight=false", "model.norm.unit_offset=true"], "model.norm.unit_offset", "but this norm has none"),
    (["model.norm.weight=false", "model.norm.cast=before_weight"], "model.norm.cast", "allowed: after_weight"),
    (
        ["model.position.fraction=0.1"],
        "model.position.fraction",
        "is 3 dimensions; RoPE rotates pairs; allowed: even",
    ),
    (
        ["model.position.order=before_qk_norm"],
        "model.position.order",
        "before_qk_norm needs a norm of queries and keys (attention.qk_norm)",
    ),
    (
        ["model.position.order=before_qk_norm", "model.attention.qk_norm={kind: rmsnorm, weight: false}"],
        "model.position.order",
        "an RMS norm without weight gives the same result before and after",
    ),
    (
        ["model.norm.kind=scalenorm", "model.embedding={norm: true, scale: 3}"],
        "model.embedding.scale",
        "3.0 has no effect, because the scalenorm after the embedding cancels any factor; allowed: 1",
    ),
    (
        [
            "model.position.scaling={kind: longrope, factor: 2, original_max_seq_len: 8, short_factor: [1], long_factor: [1]}"
        ],
        "model.position.scaling",
        "lists of [1] factors, but head_dim = 32 has 16 rotated pairs",
    ),
    (
        [
            "model.position.scaling={kind: dynamic, factor: 2, original_max_seq_len: 8}",
            "model.position.fraction=0.0625",
        ],
        "model.position.scaling",
        "2 rotated dimensions are one pair",
    ),
    (
        ["model.position.scaling={kind: yarn, factor: 2, original_max_seq_len: 8, beta_slow: 9, beta_fast: 8}"],
        "model.position.scaling",
        "beta_slow 9.0 must not be above beta_fast 8.0",
    ),
    (["model.position={kind: t5, max_distance: 16}"], "model.position.max_distance", "allowed: more than 16"),
    (
        ["model.block.parallel=shared", "model.norm.placement=post"],
        "model.block.parallel",
        "'shared' needs a norm before the branches, but placement post has none; allowed: 'none', or placement pre",
    ),
    (
        ["model.attention=none", "model.mlp=none", "model.position=none"],
        "model.attention.kind",
        "none, but the layer has neither a mixer nor an MLP, so it does nothing",
    ),
    (["model.attention=none"], "model.position.kind", "rope acts on queries and keys, but the model has no attention"),
    (
        ["model.attention=none", "model.position=none", "model.block.attention_multiplier=2.0"],
        "model.block.attention_multiplier",
        "applies to attention, but attention.kind is none; leave it out",
    ),
    (["model.block.mixer_multiplier=2.0"], "model.block.mixer_multiplier", "applies to mixer, but mixer.kind is none"),
    (
        ["model.mlp=none", "model.block.mlp_multiplier=2.0"],
        "model.block.mlp_multiplier",
        "applies to mlp, but mlp.kind is none",
    ),
    (
        ["model.mlp=none", "model.block.parallel=shared"],
        "model.block.parallel",
        "'shared' puts an MLP next to attention or a mixer, but this layer lacks one of the two; allowed: 'none'",
    ),
    (["model.mlp={kind: moe, experts: 2, active: 3}"], "model.mlp.active", "3 exceeds experts = 2; allowed: up to 2"),
    (
        [MOE % "router: {groups: {n: 3, kept: 2, by: max}}"],
        "model.mlp.router.groups.n",
        "3 does not divide 8 experts; allowed: 1, 2, 4, 8",
    ),
    (
        [MOE % "router: {groups: {n: 2, kept: 2}}"],
        "model.mlp.router.groups.kept",
        "2 of 2 groups excludes no group; allowed: less than 2",
    ),
    (
        [MOE % "router: {groups: {n: 8, kept: 4}}"],
        "model.mlp.router.groups.by",
        "top2 needs two experts per group, but each group has 1; allowed: max",
    ),
    (
        [MOE % "router: {groups: {n: 4, kept: 3, by: max}}"],
        "model.mlp.router.groups.by",
        "'max' has no effect: with 3 groups kept, the 3 best experts are always included; allowed: top2, or kept below active",
    ),
    (
        [MOE % "router: {groups: {n: 4, kept: 1}}"],
        "model.mlp.router.groups",
        "kept = 1 of 4 groups allows 2 experts per token, but active is 3; raise groups.kept",
    ),
    ([MOE % "gated: false, clamp: 7"], "model.mlp.clamp", "7.0 applies to gated experts, but gated is false"),
    ([MOE % "gated: false, up_offset: 1"], "model.mlp.up_offset", "1.0 applies to gated experts, but gated is false"),
    (
        [MOE % "balance: {loss: 0, pooled: true}"],
        "model.mlp.balance.pooled",
        "has no effect, because balance.loss is 0",
    ),
    (
        ["model.mixer={kind: mamba, inner_norm: {kind: rmsnorm, weight: false, cast: before_weight}}"],
        "model.mixer.inner_norm.cast",
        "applies to the weight of the norm, but this norm has none; allowed: after_weight",
    ),
    (
        ["model.mixer={kind: mamba, inner_norm: {kind: rmsnorm, weight: false, unit_offset: true}}"],
        "model.mixer.inner_norm.unit_offset",
        "applies to the weight of the norm, but this norm has none; allowed: false",
    ),
    (
        ["model.mixer={kind: mamba2, n_heads: 4, n_groups: 3}"],
        "model.mixer.n_groups",
        "3 does not divide n_heads = 4; allowed: 1, 2, 4",
    ),
    (
        ["model.mixer={kind: mamba2, dt_min: 0.2, dt_max: 0.1}"],
        "model.mixer.dt_min",
        "dt_min 0.2 must be below dt_max 0.1",
    ),
    (
        ["model.mixer={kind: gated_delta, n_key_heads: 4, n_value_heads: 6}"],
        "model.mixer.n_value_heads",
        "6 value heads cannot be divided evenly among 4 key heads; allowed: multiples of n_key_heads = 4",
    ),
    (
        ["model.mixer={kind: rglru, lru_width: 12, n_heads: 5}"],
        "model.mixer.n_heads",
        "5 does not divide lru_width = 12; allowed: 1, 2, 3, 4, 6, 12",
    ),
    (
        ["model.attention.visibility=prefix", "model.position=shaw"],
        "model.attention.visibility",
        "prefix lets queries see later keys, but position.kind shaw covers only earlier keys; allowed: causal, or",
    ),
    (
        ["model.attention.visibility=two_sided", "model.position=transformer_xl"],
        "model.attention.visibility",
        "two_sided lets queries see later keys, but position.kind transformer_xl covers only earlier keys; allowed:",
    ),
    (
        ["model.attention={n_heads: 4, visibility: two_sided, window: 1}"],
        "model.attention.visibility",
        "two_sided changes nothing, because each token sees only itself; leave it out",
    ),
    (["model.layers={a: {}, pattern: [a, b]}"], "model.layers.pattern", "unknown layer kind b"),
    (["model.layers={a: {}, b: {}, pattern: [a]}"], "model.layers", "b is never used in 6 layers"),
    (["model.init.head=0.5"], "model.init.head", "a tied head is initialized with the embedding"),
    (
        ["model.position.kind=learned", "train.eval_seq_len=512"],
        "train.eval_seq_len",
        "512 exceeds model.max_seq_len = 256, the number of learned positions; allowed: up to 256",
    ),
    (
        [
            "model.encoder.n_layers=2",
            "model.encoder.position.kind=learned",
            "train.objective.kind=span_corruption",
            "train.seq_len=512",
        ],
        "train.seq_len",
        "exceeds model.max_seq_len = 256, the number of learned positions; allowed: up to",
    ),
    (
        ["model.position.kind=learned", "train.seq_len=512"],
        "train.seq_len",
        "512 exceeds model.max_seq_len = 256, the number of learned positions; allowed: up to 256",
    ),
    (["train.batch_tokens=8192", "train.seq_len=100"], "train.batch_tokens", "8192 is not a multiple of the sequence"),
    (["train.micro_batch_tokens=1000"], "train.micro_batch_tokens", "1000 must be a divisor of batch_tokens = 8192"),
    (
        ["model.attention.qk_norm={kind: rmsnorm, weight: false, scope: each_head}"],
        "model.attention.qk_norm.scope",
        "each_head gives each head its own weights",
    ),
    (
        [
            "model.position.scaling={kind: longrope, original_max_seq_len: 8, factor: 4, attention_factor: 2, "
            f"short_factor: {ONES}, long_factor: {ONES}}}"
        ],
        "model.position.scaling.factor",
        "has no effect, because attention_factor is set; allowed: 1",
    ),
    (
        ["model.norm.weight=false", "model.block.parallel=separate"],
        "model.block.parallel",
        "norms without weight and bias are identical",
    ),
    (["train.warmup=123"], "train.warmup", "123 warm-up steps, but the run has only 122 steps; allowed: up to 122"),
    (["train.tokens=100"], "train.tokens", "100 is less than one batch of 8192 tokens (train.batch_tokens)"),
    (["train.decay=0.1"], "train.decay", "only schedule wsd has a decay phase, but schedule is cosine"),
    (["train.schedule=constant", "train.final_lr=0.1"], "train.final_lr", "schedule constant never changes"),
    (
        ["train.objective={kind: masked, random: 0.3}"],
        "train.objective.random",
        "0.3 and mask = 0.8 are more than all predicted tokens; allowed: a sum up to 1",
    ),
    (
        ["train.objective.kind=prefix", "data.task.kind=recall"],
        "train.objective.kind",
        "prefix chooses tokens of a text, but data.task = recall has answers; allowed: next_token, masked",
    ),
    (
        ["data.pairs=[en, de]", "data.task.kind=reverse"],
        "data.pairs",
        "en, de and data.task = reverse; allowed: one of the two",
    ),
    (
        ["train.objective={kind: span_corruption, rate: 0.9, mean_span: 1}"],
        "train.objective.mean_span",
        "visible tokens between",
    ),
    (
        ["train.objective={kind: mixture, parts: {a: {objective: {kind: span_corruption, rate: 0.9, mean_span: 1}}}}"],
        "train.objective.parts",
        "a: mean_span 1.0 and rate 0.9 leave",
    ),
    (
        ["train.objective.kind=prefix", "train.document_mask=true"],
        "train.document_mask",
        "true, but with objective prefix each window is one text with a prefix; allowed: false",
    ),
    (
        ["train.lr_multipliers.head=2"],
        "train.lr_multipliers.head",
        "2, but no parameter of this model has the role head",
    ),
    (
        ["train.lr_multipliers.narrow=2"],
        "train.lr_multipliers.narrow",
        "no parameter of this model has the role narrow",
    ),
    (
        ["train.lr_multipliers.convolution=2"],
        "train.lr_multipliers.convolution",
        "has the role convolution; leave it out",
    ),
    ([*MUP, "model.mlp={kind: moe, experts: 4}"], "model.mlp.kind", "moe; muP (model.mup) has no rule for it"),
    ([*MUP, "model.mixer.kind=mamba2"], "model.mixer.kind", "mamba2; muP (model.mup) has no rule for it"),
    (
        [*MUP, "model.attention={kind: latent, n_heads: 4, kv_rank: 16, nope_dim: 8, rope_dim: 4}"],
        "model.attention.kind",
        "latent; muP (model.mup) has no rule for it; allowed: multihead, none",
    ),
    (
        [*MUP, "model.attention.gate={per: head}"],
        "model.attention.gate",
        "a gate per head, whose number of factors may stay",
    ),
    (
        [*MUP, "model.attention.scale=0.5"],
        "model.attention.scale",
        "0.5, but muP derives 0.1767766952966369; leave it out",
    ),
    ([*MUP, "model.norm.kind=scalenorm"], "model.norm.kind", "scalenorm, which has one parameter for the whole width"),
    ([*MUP, "model.position={kind: shaw}"], "model.position.kind", "shaw, which is scaled together with the scores"),
    (
        [*MUP, "model.position={kind: transformer_xl}"],
        "model.position.kind",
        "transformer_xl, which is scaled together",
    ),
    ([*MUP, "model.embedding.width=8"], "model.embedding.width", "8, an embedding narrower than d_model; muP"),
    ([*MUP, "model.head.bias=true"], "model.head.bias", "true adds a bias that is scaled together with the logits"),
    (
        ["model.block={attention_norm: false, parallel: shared}"],
        "model.block.attention_norm",
        "false, but attention shares its norm with another branch of its stage; allowed: true",
    ),
    (
        ["model.block={mlp_output_norm: true}", "model.norm.placement=double"],
        "model.block.mlp_output_norm",
        "true, but norm.placement is double; allowed: false, or placement pre",
    ),
    (
        ["model.block={mlp_output_norm: true}", "model.norm.kind=none"],
        "model.block.mlp_output_norm",
        "true adds a norm to the MLP, but the layer lacks an MLP or a norm; allowed: false",
    ),
    (
        ["model.attention={n_heads: 4, v_dim: 5, keys_as_values: true}"],
        "model.attention.keys_as_values",
        "allowed: false, or equal widths",
    ),
    (
        ["model.mlp={kind: moe, own_norms: true, router: {norm: true}}"],
        "model.mlp.own_norms",
        "true gives all that reads the stream a norm of its own, but mlp.shared is not set; set it",
    ),
    (
        ["model.mlp={kind: moe, own_norms: true, shared: {}}"],
        "model.mlp.own_norms",
        "but mlp.router.norm is not set; set it",
    ),
    (
        ["model.mlp={kind: moe, own_norms: true, shared: {}, router: {norm: true}}", "model.norm.placement=post"],
        "model.mlp.own_norms",
        "true replaces the norm before the mixture, but the layer has none",
    ),
    (
        ["model.mlp={kind: moe, own_norms: true, shared: {}, router: {norm: true}}", "model.block.parallel=shared"],
        "model.mlp.own_norms",
        "true, but block.parallel is shared; allowed: false, or parallel none",
    ),
    (
        ["model.mlp={kind: moe, router: {norm: true}}", "model.norm=none"],
        "model.mlp.router.norm",
        "true needs a norm, but model.norm.kind is none; allowed: false",
    ),
    (
        ["model.embedding={norm: sum}"],
        "model.embedding.norm",
        "'sum', but nothing is added to the token embedding; allowed: true, false",
    ),
    (
        ["model.embedding={widened: sum}"],
        "model.embedding.widened",
        "'sum' needs an embedding with a width of its own, but embedding.width is null; allowed: tokens",
    ),
    (
        ["model.norm=none", "model.head.transform={activation: relu}"],
        "model.head.transform.norm",
        "true needs a norm, but model.norm.kind is none; allowed: false",
    ),
    (
        [TWO_SIDED, "model.position={kind: t5, buckets: 5}"],
        "model.position.buckets",
        "5, but half of the buckets are for later keys (attention.visibility); allowed: even numbers from 4",
    ),
    (
        [TWO_SIDED, "model.position={kind: t5, max_distance: 8}"],
        "model.position.max_distance",
        "8 leaves no room for logarithmic buckets; allowed: more than 8",
    ),
    (
        ["model.position=t5", "model.layers={a: {attention.visibility: two_sided}, b: {}, pattern: [a, b]}"],
        "model.layers.a.position",
        "t5 has one table for all layers, for the heads and directions (attention.visibility) of `model`",
    ),
    (
        [*MUP, "model.head.scale=1"],
        "model.head.scale",
        "1, but muP sets it to base_width / d_model = 0.5; remove this field",
    ),
    (
        [*MUP, "train.optimizer.kind=muon"],
        "train.optimizer",
        "muon with scale adamw, whose updates grow with the square root",
    ),
    (["train.start_layers=[0]"], "train.start_layers", "1 layers; allowed: "),
    (
        ["train.teacher={path: runs/a, logits: 0}"],
        "train.teacher.logits",
        "0, and hidden is 0, so the teacher has no effect",
    ),
    (
        ["train.teacher={path: runs/a, logits: 0, hidden: 1, temperature: 2}"],
        "train.teacher.temperature",
        "2 has no effect, because train.teacher.logits is 0; leave it out",
    ),
    (
        ["train.lora={modules: [attention.k, querry]}"],
        "train.lora.modules",
        "querry is not a projection of the model's layers",
    ),
    ([*MUP, "train.lora={}"], "train.lora", "muP prescribes no learning rates for the matrices of LoRA"),
    (["train.lora={}", "parallel.tensor=2"], "parallel.tensor", "2; allowed with train.lora: 1"),
    (["train.lora={}", "model.mlp={kind: moe, experts: 4}", "parallel.expert=2"], "parallel.expert", "2; allowed with"),
    (["train.lora={}", "train.decay_embeddings=true"], "train.decay_embeddings", "true has no effect, because"),
    *(
        (
            ["train.lora={}", f"train.lr_multipliers.{role}=2"],
            f"train.lr_multipliers.{role}",
            "2 has no effect, because train.lora leaves these parameters as they are",
        )
        for role in LrMultipliers.model_fields
        if role not in ("input", "narrow", "output")
    ),
    (
        ["train.lora={}", "train.optimizer={kind: muon, adam_lr: 1e-3}"],
        "train.optimizer.adam_lr",
        "0.001 has no effect, because Muon updates all matrices of train.lora",
    ),
]


@pytest.mark.parametrize(("overrides", "path", "message"), BROKEN_RULES)
def test_a_broken_rule_says_where_and_how(overrides, path, message):
    found = problems(*overrides)
    assert list(found) == [path]
    assert message in found[path]


def test_every_rule_is_broken_by_a_row():
    """Except those of plug-ins, which test_plugins.py breaks."""
    broken = [rule for rule in CONFIG_RULES if rule.field in ("plugins", "train.betas", "train.eps")]
    for overrides, _, _ in BROKEN_RULES:
        config = Config.model_validate(overlay(read_config("tiny-llama"), parse_overrides(overrides)[0], Config))
        broken += [rule for rule in (*LAYER_RULES, *MODEL_RULES) if rule.broken(config.model)]
        broken += [rule for rule in CONFIG_RULES if rule.broken(config)]
    assert [rule.field for rule in (*LAYER_RULES, *MODEL_RULES, *CONFIG_RULES) if rule not in broken] == []


@pytest.mark.parametrize(
    "overrides",
    [
        # These scalings also multiply cos and sin, which a norm after them undoes.
        [
            "model.position={kind: rope, order: before_qk_norm, scaling: {kind: yarn, factor: 2, original_max_seq_len: 8}}"
        ],
        ["model.embedding.norm=true", "model.layers={a: {norm: none}, b: {norm: {kind: scalenorm}}, pattern: [a, b]}"],
        [
            "model.position.order=before_qk_norm",
            "model.attention.qk_norm={kind: rmsnorm}",
            "model.layers={a: {attention: none, mixer: short_conv}, b: {}, pattern: [a, b]}",
        ],
    ],
)
def test_what_looks_alike_but_works_is_taken(overrides):
    plain = load_config("tiny-llama", "model.attention.qk_norm={kind: rmsnorm, weight: false}")
    assert load_config("tiny-llama", "model.attention.qk_norm={kind: rmsnorm, weight: false}", *overrides) != plain


def test_a_setting_that_every_layer_replaces_is_refused():
    layers = "model.layers={a: {attention.window: 4}, b: {attention: {window: 8}}, c: %s, pattern: [a, b, c]}"
    assert problems("model.attention.window=6", layers % "{attention.window: 5}") == {
        "model.attention.window": "every layer kind replaces it, so it has no effect; leave it out"
    }
    for change in ("{}", "{position.kind: none}", "{attention.scale: 0.5}"):
        assert load_config("tiny-llama", "model.attention.window=6", layers % change)


def test_separate_parallel_norms_need_a_norm():
    found = problems("model.norm.kind=none", "model.block.parallel=separate")
    assert found == {
        "model.block.parallel": "'separate' needs a second norm, but norm.kind is none; allowed: none, shared"
    }


def test_a_rule_broken_by_one_layer_kind_names_that_kind():
    found = problems("model.layers={a: {}, b: {attention.n_kv_heads: 3}, pattern: [a, b]}")
    assert list(found) == ["model.layers.b.attention.n_kv_heads"]


def test_a_rule_broken_everywhere_is_reported_once():
    found = problems("model.attention.n_kv_heads=3", "model.layers={a: {}, b: {mlp.d_ff: 8}, pattern: [a, b]}")
    assert list(found) == ["model.attention.n_kv_heads"]


def test_a_rule_that_reads_a_wrong_field_is_silent():
    assert list(problems("model.attention.n_heads=x", "model.attention.n_kv_heads=3")) == ["model.attention.n_heads"]


@pytest.mark.parametrize("raw", [{}, {"model": None}, {"model": []}, {"train": {"betas": [1, 2, 3]}}])
def test_hardly_anything_is_still_answered_with_a_user_error(raw):
    with pytest.raises(UserError, match="problem"):
        build_config(raw)


def test_studies_are_checked_the_same_way():
    raw = {"question": "?", "base": "tiny-llama", "arms": {"a": {}}, "budget": {"tokens": "1M", "flops": 1e9}}
    with pytest.raises(UserError, match=r"model\.mlp\.d_ff, model\.d_model, model\.n_layers") as caught:
        validate(StudyConfig, raw | {"equal": {"parameters": "1%", "by": "d_f"}, "seeds": 1}, "s.yaml")
    assert "budget  " in str(caught.value)
    assert "sets tokens and flops; allowed: exactly one of tokens, flops" in str(caught.value)
    assert "seeds" in str(caught.value)


@pytest.mark.parametrize("key", ["(a", "[", "(([^!])+)+!", "\\"])
def test_an_unknown_key_is_not_used_as_a_pattern(key):
    """The third key once took more than a minute."""
    found = problems(f"model.mlp.{key}=swiglu")
    assert found[f"model.mlp.{key}"].strip() == "unknown; write model.mlp.kind=gated model.mlp.activation=silu"


def floats_of(kind: Any, path: str, owner: type | None = None, lists: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the path of each float in a type, and whether the class of its field checks it.

    `owner` is the class that has the field. `lists` is the number of containers around the float.
    """
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for section in classes_in(kind):
            for name, field in section.model_fields.items():
                yield from floats_of(field.annotation, f"{path}.{name}", section)
        return
    if kind is float:
        yield path, owner is not None and issubclass(owner, Settings) and lists <= 1
    origin = get_origin(kind)
    deeper = {list: 1, tuple: 1, dict: 2}.get(origin, 0) if isinstance(origin, type) else 0
    for part in get_args(kind):
        yield from floats_of(part, path, owner, lists + deeper)


def test_every_number_of_a_config_must_fit_into_float32():
    found = dict(floats_of(Config, ""))
    assert len(found) > 50
    assert [path for path, checked in found.items() if not checked] == []


class Number(Settings):
    """Section with a float in each place that is checked."""

    alone: Positive | None = None
    pair: tuple[float, float] | None = None


@given(st.floats(min_value=5e-324, max_value=1e308))
def test_a_number_is_taken_if_float32_neither_overflows_nor_makes_it_0(number: float):
    with np.errstate(all="ignore"):
        fits = 0 < np.float32(number) < np.inf
    for value in ({"alone": number}, {"pair": (1.0, number)}):
        try:
            assert (Number.model_validate(value).model_dump(exclude_none=True) == value) == fits
        except ValidationError:
            assert not fits


@pytest.mark.parametrize("value", ["1e300", "3.5e38", "5e-324", "1e-60"])
@pytest.mark.parametrize(
    "field", ["model.norm.eps", "train.lr", "model.embedding.scale", "train.lr_multipliers.embedding"]
)
def test_what_float32_cannot_hold_is_refused_when_it_is_read(field: str, value: str):
    allowed = "allowed: 0, or absolute values from 1.4e-45 to 3.4e38"
    assert problems(f"{field}={value}")[field].strip().endswith(f"does not fit into float32; {allowed}")
    assert load_config("tiny-llama", f"{field}=1e-40")


def test_the_hint_for_mixture_depends_on_the_field() -> None:
    wrong = ["train.objective={kind: mixture, parts: {a: {objective: {kind: mixture}}}}"]
    with pytest.raises(UserError, match=r"parts\.a\.objective\.kind +'mixture'; allowed: .*span_corruption"):
        build_config({}, wrong)
    with pytest.raises(UserError, match=r"'mixture'; write model\.mlp\.kind=moe"):
        build_config({}, ["model.mlp={kind: mixture}"])
