"""The hash and the difference depend on the meaning of a config, not on its spelling."""

import pytest

from archlab.config.identity import config_hash, differences, resolved
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config

DERIVED = (
    "model.attention.head_dim=32",
    "model.attention.scale=0.17677669529663687",
    "model.mlp.bias=false",
    "train.seq_len=256",
    "train.micro_batch_tokens=8192",
    "train.final_lr=0.1",
    "train.warmup=2%",
)


@pytest.mark.parametrize("override", DERIVED)
def test_the_hash_ignores_what_is_only_written_out(override):
    assert config_hash(load_config("tiny-llama", override)) == config_hash(load_config("tiny-llama"))


def test_the_hash_ignores_how_layer_kinds_are_written():
    dotted = load_config("tiny-llama", "model.layers={a: {attention.window: 4}, pattern: [a]}")
    nested = load_config("tiny-llama", "model.layers={a: {attention: {window: 4}}, pattern: [a]}")
    assert config_hash(dotted) == config_hash(nested)


@pytest.mark.parametrize("override", ["model.attention.window=8", "train.seed=1", "model.norm.eps=1e-6"])
def test_the_hash_sees_every_change(override):
    assert config_hash(load_config("tiny-llama", override)) != config_hash(load_config("tiny-llama"))


def test_the_hash_of_plain_values_does_not_depend_on_their_order():
    assert config_hash({"a": 1, "b": [1, 2]}) == config_hash({"b": [1, 2], "a": 1})


def test_no_difference_between_spellings():
    assert differences(load_config("tiny-llama", *DERIVED), load_config("Tiny_Llama")) == {}


def test_diff_names_fields_with_both_values_section_by_section():
    base = load_config("tiny-llama")
    other = load_config("tiny-llama", "model.norm.kind=layernorm", "model.layers={a: {mlp.d_ff: 8}, pattern: [a]}")
    assert differences(base, other) == {
        "model.norm.kind": ("rmsnorm", "layernorm"),
        "model.norm.bias": (None, True),
        "model.norm.cast": ("after_weight", None),
        "model.layers.a.mlp.d_ff": (None, 8),
        "model.layers.pattern": (None, ["a"]),
    }
    assert list(differences(base, other))[:3] == ["model.norm.kind", "model.norm.cast", "model.norm.bias"]


def test_diff_of_the_model_leaves_out_other_fields():
    pair = load_config("tiny-llama"), load_config("tiny-llama", "train.lr=0.5", "model.n_layers=1")
    assert set(differences(*pair)) == {"train.lr", "model.n_layers"}
    assert set(differences(*pair, model_only=True)) == {"model.n_layers"}


KINDS = "model.layers={a: {attention.n_heads: 2}, b: {mlp.kind: plain}, pattern: [a, b]}"


@pytest.mark.parametrize("override", ["model.attention.head_dim=32", "model.mlp.d_ff=344", "model.attention.scale=0.2"])
def test_the_hash_shows_whether_a_layer_kind_derives_a_value(override):
    """A layer kind may derive other values than the model: a kind with another number of heads has another head_dim."""
    model = {"vocab_size": 300, "d_model": 128, "n_layers": 2, "attention": {"n_heads": 4}}
    derived, given = build_config({"model": model}, [KINDS]), build_config({"model": model}, [KINDS, override])
    assert layer_configs(derived.model) != layer_configs(given.model)
    assert config_hash(derived) != config_hash(given)
    assert differences(derived, given)


@pytest.mark.parametrize("overrides", [[KINDS], [KINDS, "model.attention.n_kv_heads=1"], []])
def test_what_is_written_out_is_the_same_model(overrides):
    config = load_config("tiny-llama", "model.n_layers=2", *overrides)
    again = build_config(resolved(config))
    assert layer_configs(again.model) == layer_configs(config.model)
    assert resolved(again) == resolved(config)
