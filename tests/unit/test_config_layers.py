"""Patterns become one complete LayerConfig per layer; derived values are filled in once."""

import math
from collections import Counter

import pytest

from archlab.config.describe import layer_table
from archlab.config.layers import distinct_layers, layer_configs, layer_runs, resolve
from archlab.exchange.configs import load_config

PATTERN = """model.layers={local: {attention.window: 16, position.theta: 1e3}, full: {position.kind: none,
attention: {n_kv_heads: 4}}, pattern: [local, local, full]}"""


def test_without_a_pattern_all_layers_are_the_same():
    layers = layer_configs(load_config("tiny-llama").model)
    assert len(layers) == 6
    assert len(set(layers)) == 1
    assert layers[0].kind == "layer"


def test_a_pattern_repeats_and_may_be_cut_short():
    model = load_config("tiny-llama", PATTERN, "model.n_layers=5").model
    assert [layer.kind for layer in layer_configs(model)] == ["local", "local", "full", "local", "local"]


@pytest.mark.parametrize("preset", ["llama-3-8b", "gemma-3-4b", "deepseek-v3", "qwen3-next-80b-a3b"])
def test_distinct_layers_are_all_layers_counted(preset):
    model = load_config(preset).model
    assert distinct_layers(model) == Counter(layer_configs(model))


def test_a_layer_kind_changes_only_what_it_says():
    local, _, full = layer_configs(load_config("tiny-llama", PATTERN).model)[:3]
    assert (local.attention.window, local.attention.n_kv_heads, local.position.theta) == (16, 2, 1e3)
    assert (full.attention.window, full.attention.n_kv_heads, full.position.kind) == (None, 4, "none")
    assert local.mlp == full.mlp


def test_derived_values_follow_a_layer_kinds_own_choices():
    model = load_config("tiny-llama", "model.layers={w: {attention.head_dim: 64}, pattern: [w]}").model
    assert layer_configs(model)[0].attention.scale == 1 / math.sqrt(64)


@pytest.mark.parametrize(
    ("overrides", "d_ff"),
    [
        (["model.mlp={kind: plain, d_ff: null}"], 512),
        (["model.mlp={kind: gated, d_ff: null}"], 344),
        (["model.mlp={kind: gated, d_ff: null}", "model.d_model=136"], 368),
    ],
)
def test_derived_width_of_the_mlp(overrides, d_ff):
    assert layer_configs(load_config("tiny-llama", *overrides).model)[0].mlp.d_ff == d_ff


def test_resolving_twice_changes_nothing():
    model = load_config("tiny-transformer").model
    assert resolve(resolve(model)) == resolve(model)
    assert resolve(model).embedding.scale == math.sqrt(128)


def test_runs_and_their_table():
    model = load_config("tiny-llama", PATTERN).model
    assert [(first, last) for first, last, _ in layer_runs(model)] == [(0, 1), (2, 2), (3, 4), (5, 5)]
    assert layer_table(model)[0] == {
        "layers": "0-1",
        "kind": "local",
        "q/kv/dim": "4/2/32",
        "window": "16",
        "position": "rope 1000",
        "mlp": "gated silu 344",
        "norm": "rmsnorm pre",
    }
    assert [row["layers"] for row in layer_table(model)] == ["0-1", "2", "3-4", "5"]
